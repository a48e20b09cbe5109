"""One address for every inference engine."""

__version__ = "0.1.0"
