"""The version, below every room."""

__version__ = "0.1.0"
