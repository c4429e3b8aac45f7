"""The version of Detent."""

__version__ = "0.1.0"
