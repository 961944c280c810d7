"""Objects as files below one directory."""

from headwater_core.objectstore.directory.directory_store import DirectoryStore

__all__ = ["DirectoryStore"]
