"""Fixtures of these tests."""

from training_setup import shards, shared_path  # noqa: F401
