"""Agents of other versions beside those of this one: from before pages, and from after it. Each writes heads of its own format."""

from collections.abc import Callable
from enum import Enum

import msgspec

from headwater_core.errors import UnsupportedFormat
from headwater_core.objectstore.store import ObjectStore
from headwater_core.partition import PartitionId
from manifests import keys
from manifests.document import unseal_body
from manifests.entry_tree import NO_PAGES
from manifests.head import HEAD_FORMAT, Head, parse_head
from manifests.page_limits import PageLimits
from manifests.repository import ManifestRepository, Versioned
from tests.manifests import format_1
from tests.manifests.trees import limits_of

ALL_IN_THE_HEAD = limits_of(1 << 20, 1 << 20)


class Version(Enum):
    """Of an agent, by the format of the heads that it writes."""

    FORMER = 1, 2
    PRESENT = HEAD_FORMAT
    LATER = HEAD_FORMAT[0], HEAD_FORMAT[1] + 1

    @property
    def next(self) -> "Version":
        return Version.LATER if self is Version.PRESENT else Version.PRESENT


class FormerRepository(ManifestRepository):
    """Knows no pages: what has them is of an unknown format."""

    def load(self, partition: PartitionId) -> Versioned | None:
        found = super().load(partition)
        if found and found.head.format[0] > Version.FORMER.value[0]:
            raise UnsupportedFormat(f"needs upgrade: the manifest of {partition} has format {found.head.format}")
        return found

    def _write(self, key: str, document: bytes, expected_tag: str | None) -> str:
        if keys.parse_manifest(key) and b'"commit_id"' in document:
            document = format_1.encode(parse_head(document, key, lambda _: NO_PAGES))
        return super()._write(key, document, expected_tag)


class LaterRepository(ManifestRepository):
    """Writes a field that is lost when an older version commits over it."""

    def load(self, partition: PartitionId) -> Versioned | None:
        found = super().load(partition)
        return found and Versioned(_as_ours(found.head), found.tag, found.size_bytes)

    def _write(self, key: str, document: bytes, expected_tag: str | None) -> str:
        if keys.parse_manifest(key) and b'"commit_id"' in document:
            body = unseal_body(document, key, [HEAD_FORMAT[0]])
            document = format_1.encode_body({**body, "format": list(Version.LATER.value), "of_later": True})
        return super()._write(key, document, expected_tag)


def _as_ours(head: Head) -> Head:
    return msgspec.structs.replace(head, format=min(head.format, HEAD_FORMAT))


def repository_of(version: Version, store: ObjectStore, new_id: Callable[[], str], limits: PageLimits) -> ManifestRepository:
    """What an agent of `version` reads and commits manifests with."""
    match version:
        case Version.FORMER:
            return FormerRepository(store, new_id=new_id, limits=ALL_IN_THE_HEAD)
        case Version.LATER:
            return LaterRepository(store, new_id=new_id, limits=limits)
        case Version.PRESENT:
            return ManifestRepository(store, new_id=new_id, limits=limits)
