"""Fixtures of these tests."""

from training_setup import shared_path  # noqa: F401
