"""Finds out which promises that the archive needs a store keeps (design §3), by trying them on one small object.

The object's name and content never change, so nothing is left to remove, and no right to delete is needed. Its tag may change with each
replacement (S3's does with SSE-KMS): a refusal counts only while the tag is what it was, or agents that probe at once, and a request that
was sent again after a lost answer, would make a good store look like one without conditions.
"""

from dataclasses import dataclass

from headwater_core.errors import AlreadyExists, Conflict, TransientError
from headwater_core.objectstore.digest import digest_of
from headwater_core.objectstore.store import ObjectStore

PROBE_KEY = "headwater.probe"
_ATTEMPTS = 100  # each agent that probes at the same time can disturb one of them
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
    return Capabilities(
        conditional_create=_is_refused_create(store),
        conditional_replace=_replaces_current(store) and not _replaces(store, "0" * len(store.get(PROBE_KEY)[1])),
        digest_confirmed=store.stat(PROBE_KEY).digest == digest_of(_DOCUMENT),
    )


def _is_refused_create(store: ObjectStore) -> bool:
    try:
        store.create(PROBE_KEY, _DOCUMENT)
    except AlreadyExists:
        return True
    return False


def _replaces_current(store: ObjectStore) -> bool:
    """Is a replacement done that names the current tag?"""
    _, tag = store.get(PROBE_KEY)
    for _ in range(_ATTEMPTS):
        if _replaces(store, tag):
            return True
        refused = tag
        _, tag = store.get(PROBE_KEY)
        if tag == refused:
            return False
    raise TransientError(f"{store.url}/{PROBE_KEY} was replaced by others during {_ATTEMPTS} attempts; it is tried again")


def _replaces(store: ObjectStore, tag: str) -> bool:
    try:
        store.replace(PROBE_KEY, _DOCUMENT, expected_tag=tag)
    except Conflict:
        return False
    return True
