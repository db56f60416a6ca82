"""Fixtures of these tests."""

from exchange.conftest import cut  # noqa: F401
from training_setup import shared_path  # noqa: F401
