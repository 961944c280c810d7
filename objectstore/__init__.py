"""Keys and bytes: where the archive's objects live. See store.py for what is asked of a store."""

from objectstore.config import StoreConfig
from objectstore.metered import MeteredStore
from objectstore.open import open_store
from objectstore.probe import Capabilities, probe
from objectstore.store import ObjectInfo, ObjectStore

__all__ = ["Capabilities", "MeteredStore", "ObjectInfo", "ObjectStore", "StoreConfig", "open_store", "probe"]
