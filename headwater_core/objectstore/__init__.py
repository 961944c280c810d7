"""Keys and bytes: where the archive's objects live. store.py says what a store must do."""

from headwater_core.objectstore.config import StoreConfig
from headwater_core.objectstore.probe import Capabilities, probe_store
from headwater_core.objectstore.store import ObjectInfo, ObjectStore
from headwater_core.objectstore.store_url import open_store

__all__ = ["Capabilities", "ObjectInfo", "ObjectStore", "StoreConfig", "open_store", "probe_store"]
