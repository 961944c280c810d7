"""Finds out which promises that the archive needs a store keeps (design §3), by trying them on one small object.

The object's name and content never change, so agents that probe at once do not disturb each other, nothing is left to
remove, and no right to delete is needed.
"""

from dataclasses import dataclass

from headwater_core.errors import AlreadyExists, Conflict
from headwater_core.objectstore.digest import digest_of
from headwater_core.objectstore.store import ObjectStore

PROBE_KEY = "headwater.probe"
_DOCUMENT = b"Headwater tries here whether this store refuses to overwrite.\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """conditional_create   a second creation of a key is refused
    conditional_replace  a replacement is refused unless it names the current tag, and done when it does
    digest_confirmed     the store says the CRC-64/NVME of an object
    """

    conditional_create: bool
    conditional_replace: bool
    digest_confirmed: bool

    @property
    def many_agents(self) -> bool:
        """Safe with more than one agent: all arbitration is by conditional writes."""
        return self.conditional_create and self.conditional_replace


def probe_store(store: ObjectStore) -> Capabilities:
    """Which promises `store` keeps. Raises Unauthorised, UsageError (no such bucket) and TransientError like any use of it."""
    _is_refused_create(store)
    creates = _is_refused_create(store)
    _, tag = store.get(PROBE_KEY)
    return Capabilities(
        conditional_create=creates,
        conditional_replace=_replaces(store, tag) and not _replaces(store, "0" * len(tag)),
        digest_confirmed=store.stat(PROBE_KEY).digest == digest_of(_DOCUMENT),
    )


def _is_refused_create(store: ObjectStore) -> bool:
    try:
        store.create(PROBE_KEY, _DOCUMENT)
    except AlreadyExists:
        return True
    return False


def _replaces(store: ObjectStore, tag: str) -> bool:
    try:
        store.replace(PROBE_KEY, _DOCUMENT, expected_tag=tag)
    except Conflict:
        return False
    return True
