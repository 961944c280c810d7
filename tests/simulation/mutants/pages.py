"""Mistakes about the pages of a manifest. They take a page that is collected or replaced at one moment."""

import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext, suppress
from functools import partial
from typing import Any

from msgspec.structs import replace

import archival.collection.collector
import archival.collection.orphans
import archival.partition.archiver
import archival.partition.branches
import archival.partition.looks
import archival.partition.merger
import archival.partition.release
import archival.partition.source
import archival.partition.tails
import archival.plan.lineage
import archival.plan.merge_plan
import archival.plan.replacement
import archival.plan.role
import archival.plan.step_plan
import archival.plan.trim
import manifests.page_store
import manifests.repository
from archival.partition.branches import Branches, Division
from archival.partition.held_head import HeldHead
from headwater_core.errors import (
    AlreadyExists,
    ManifestChanged,
    UnknownOutcome,
)
from headwater_core.objectstore.confirmed_put import put_confirmed
from headwater_core.partition import PartitionId
from headwater_core.segments.local_log import LocalLog
from hydration.archive.manifest_view import HeldEntries, ManifestView
from hydration.resumption import Resumable
from manifests.entry import Entry
from manifests.entry_tree import EntryTree, SupersededEntries
from manifests.head import Head
from manifests.page import Item, PageRef
from manifests.page_store import PageStore
from manifests.repository import ManifestRepository
from tests.simulation.mutants.mutant import mutant, patch_in


@mutant("a page that was confirmed for an earlier claim is used again", theme="pages", noted=47)
def page_of_an_earlier_fence(stack: ExitStack) -> None:
    real = PageStore.write
    confirmed: dict[tuple[Any, ...], PageRef] = {}

    def write(self: PageStore, partition: PartitionId, fence: int, level: int, items: Sequence[Item]) -> PageRef:
        content = (id(self), partition, level, tuple(each.uid for each in items))
        return confirmed.setdefault(content, real(self, partition, fence, level, items))

    patch_in(stack, PageStore, "write", write)


@mutant("a head names pages that the store did not confirm", theme="pages", noted=47)
def page_unconfirmed(stack: ExitStack) -> None:
    def put(store: Any, key: str, data: Any, size_bytes: int, digest: str) -> None:
        with suppress(AlreadyExists, UnknownOutcome):
            store.put(key, data, size_bytes=size_bytes)

    patch_in(stack, manifests.page_store, "put_confirmed", put)


@mutant("a head is committed before the pages that it names", theme="pages", noted=4)
def head_before_pages(stack: ExitStack) -> None:
    real, left = ManifestRepository._write, threading.local()

    def put(store: Any, key: str, data: Any, size_bytes: int, digest: str) -> None:
        left.puts = [*getattr(left, "puts", ()), (store, key, data, size_bytes, digest)]

    def write(self: ManifestRepository, key: str, document: bytes, expected_tag: str | None) -> str:
        tag = real(self, key, document, expected_tag)
        puts, left.puts = getattr(left, "puts", ()), []
        for each in puts:
            put_confirmed(*each)
        return tag

    patch_in(stack, manifests.page_store, "put_confirmed", put)
    patch_in(stack, ManifestRepository, "_write", write)


@mutant("a manifest of format 1 is carried over to pages that the store did not confirm", theme="pages", in_race=True)
def carried_over_unconfirmed(stack: ExitStack) -> None:
    real, now = ManifestRepository._packed, threading.local()

    def packed(self: ManifestRepository, head: Head) -> Head:
        now.carries = head.format[0] == 1
        return real(self, head)

    def put(store: Any, key: str, data: Any, size_bytes: int, digest: str) -> None:
        with suppress(AlreadyExists, UnknownOutcome) if now.carries else nullcontext():
            put_confirmed(store, key, data, size_bytes, digest) if not now.carries else store.put(key, data, size_bytes=size_bytes)

    patch_in(stack, ManifestRepository, "_packed", packed)
    patch_in(stack, manifests.page_store, "put_confirmed", put)


@mutant("an agent commits over what a newer version has written", theme="versions")
def newer_format_overwritten(stack: ExitStack) -> None:
    for module in (archival.partition.archiver, manifests.repository):
        patch_in(stack, module, "check_writable", lambda _: None)


@mutant("a page that is not there is damage, whatever the head says by now", theme="pages", in_race=True)
def missing_page_is_damage(stack: ExitStack) -> None:
    patch_in(stack, ManifestRepository, "_still_refers", lambda *_: True)


@mutant("an archiver keeps the head whose page was replaced", theme="pages", in_race=True)
def archiver_keeps_an_old_head(stack: ExitStack) -> None:
    real = HeldHead.doubt

    def doubt(self: HeldHead) -> None:
        if not isinstance(sys.exc_info()[1], ManifestChanged):
            real(self)

    patch_in(stack, HeldHead, "doubt", doubt)


@mutant("a reader keeps the head whose page was replaced", theme="pages", in_race=True)
def reader_keeps_an_old_head(stack: ExitStack) -> None:
    def entry(self: ManifestView, look_up: Callable[[], Any]) -> Resumable[Entry | None]:
        found: Entry | PageRef | None = look_up()
        while isinstance(found, PageRef):
            yield self._run(found.uid, partial(self._load_page, found))
            found = look_up()
        return found

    patch_in(stack, ManifestView, "_entry", entry)


@mutant("a reader keeps pages by where they begin, not by their names", theme="pages", in_race=True)
def pages_kept_by_their_place(stack: ExitStack) -> None:
    def name(ref: PageRef) -> str:
        return f"{ref.level} {ref.base_offset}"

    def add_page(self: HeldEntries, ref: PageRef, items: Sequence[Item]) -> None:
        self._pages[name(ref)] = tuple(items)

    def descend(self: HeldEntries, partition: PartitionId, choose: Callable[[Sequence[Item]], Item | None]) -> Item | None:
        item = choose(self._heads.get(partition, ()))
        while isinstance(item, PageRef) and (below := self._pages.get(name(item))) is not None:
            item = choose(below)
        return item

    patch_in(stack, HeldEntries, "add_page", add_page)
    patch_in(stack, HeldEntries, "_descend", descend)


@mutant("a dead branch is cut in the head alone, not in pages", theme="pages", in_race=True)
def cut_in_the_head_alone(stack: ExitStack) -> None:
    real = Branches.split

    def split(self: Branches, entries: EntryTree, at: int) -> Division:
        return real(self, entries, max(at, entries.newest[0].base_offset if entries.newest else entries.next_offset))

    patch_in(stack, Branches, "split", split)


@mutant("what lives again is looked for in the head alone, not in pages", theme="pages", in_race=True)
def revived_from_the_head_alone(stack: ExitStack) -> None:
    def at_base(self: SupersededEntries, base_offset: int) -> list[Entry]:
        return [each for each in self.newest if each.base_offset == base_offset]

    patch_in(stack, SupersededEntries, "at_base", at_base)


@mutant("what lives again stays listed as superseded when it is in a page", theme="pages", in_race=True)
def revived_stays_superseded(stack: ExitStack) -> None:
    real = SupersededEntries.without

    def without(self: SupersededEntries, entry: Entry) -> SupersededEntries:
        return real(self, entry) if entry in self.newest else self

    patch_in(stack, SupersededEntries, "without", without)


@mutant("release reads the entries in the head alone, and takes what is in pages for sound", theme="pages", in_race=True)
def release_by_the_head_alone(stack: ExitStack) -> None:
    real = archival.partition.release.release_bound

    def release_bound(log: LocalLog, head: Head | None, writer: str) -> tuple[int, str]:
        if head and head.entries.references:
            assumed = [_assumed(ref) for ref in head.entries.references]
            head = replace(head, entries=(*assumed, *head.entries.newest))
        return real(log, head, writer)

    patch_in(stack, archival.partition.release, "release_bound", release_bound)


def _assumed(ref: PageRef) -> Entry:
    digest = "crc64nvme:" + "0" * 16
    return Entry(base_offset=ref.base_offset, last_offset=ref.last_offset, size_bytes=1, live_bytes=1, digest=digest, fence=ref.fence)
