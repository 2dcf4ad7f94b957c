"""The version of Shardwright; pyproject.toml reads it here, without importing the rest."""

__version__ = "0.1.0"
