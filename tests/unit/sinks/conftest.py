"""Stores of each kind, for what sinks ask of them."""

from tests.services import postgres, postgres_url, store, store_url

__all__ = ["postgres", "postgres_url", "store", "store_url"]
