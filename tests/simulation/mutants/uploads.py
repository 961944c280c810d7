"""Mistakes about uploads and commits."""

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any

from msgspec.structs import replace

import headwater_core.layouts.segment
import headwater_core.objectstore.confirmed_put
import manifests.page_store
import manifests.repository
from archival.partition.announcer import Announcer
from archival.partition.archiver import PartitionArchiver
from archival.partition.run_names import RunName, UniqueNames
from archival.partition.uploads import NewUpload, Uploads
from headwater_core.errors import (
    AlreadyExists,
    Conflict,
    Fenced,
    NotFound,
    TransientError,
    UnknownOutcome,
)
from headwater_core.objectstore.store import NewObject
from manifests import keys
from manifests.entry import Entry
from manifests.head import Head, encode_head
from manifests.repository import CommitLost, ManifestRepository, Versioned
from tests.simulation.mutants.mutant import mutant, patch_in

# Upload


@mutant("the digest of what was sent is not compared", theme="lineage", in_race=True)
def digest_not_compared(stack: ExitStack) -> None:
    def put_all(store: Any, objects: Sequence[NewObject], digests: Sequence[str]) -> None:
        for each, digest in zip(objects, digests, strict=True):
            try:
                store.put_all([each])
            except (AlreadyExists, UnknownOutcome) as error:
                if not headwater_core.objectstore.confirmed_put._confirm(store, each.key, each.size_bytes, digest, error):
                    raise UnknownOutcome(each.key) from error

    patch_in(stack, headwater_core.layouts.segment, "put_all_confirmed", put_all)


@mutant("commits without confirming an upload that got no answer", noted=8)
def commit_unconfirmed(stack: ExitStack) -> None:
    patch_in(stack, headwater_core.objectstore.confirmed_put, "_confirm", lambda *_: True)


@mutant("keys carry base, last and fence only, and a key that is taken is taken for one's own", theme="even", rare=True, noted=4)
def key_without_uid(stack: ExitStack) -> None:
    def following(self: Any, last: Entry | None, base_offset: int, last_offset: int, size_bytes: int, fence: int) -> RunName:
        uid = f"{fence:032x}"
        return RunName(keys.data(self._partition, base_offset, last_offset, fence, uid, self._layout), uid, {})

    def put_all(store: Any, objects: Sequence[NewObject], digests: Sequence[str]) -> None:
        for each in objects:
            with suppress(AlreadyExists):
                store.put_all([each])

    patch_in(stack, UniqueNames, "following", following)
    patch_in(stack, headwater_core.layouts.segment, "put_all_confirmed", put_all)


# Commit


@mutant("the head is put unconditionally")
def blind_put(stack: ExitStack) -> None:
    def write(self: ManifestRepository, key: str, document: bytes, expected_tag: str | None) -> str:
        while True:
            try:
                return self._store.create(key, document)
            except AlreadyExists:
                try:
                    return self._store.replace(key, document, expected_tag=self._store.get(key)[1])
                except (Conflict, NotFound):
                    continue

    patch_in(stack, ManifestRepository, "_write", write)


@mutant("a refused commit is repeated on the new head without reading what is there", noted=3)
def refused_not_read_back(stack: ExitStack) -> None:
    def commit(self: ManifestRepository, before: Versioned | None, after: Head) -> Versioned:
        for _ in range(4):
            head = replace(after, version=before.head.version + 1 if before else 1, commit_id=self._new_id())
            try:
                tag = self._write(keys.head(head.partition_id), encode_head(head), before.tag if before else None)
                return Versioned(head, tag, 0)
            except (AlreadyExists, Conflict, UnknownOutcome):
                current = self.load(head.partition_id)
                if current and (current.head.fence, current.head.writer) != (head.fence, head.writer):
                    raise Fenced("a newer claim") from None
                if current and before and current.tag != before.tag and len(after.entries) > len(before.head.entries):
                    last = current.head.last_offset
                    new = after.entries[-1]
                    moved = replace(new, base_offset=last + 1, last_offset=last + 1 + new.last_offset - new.base_offset)
                    after = replace(current.head, entries=(*current.head.entries, moved), last_offset=moved.last_offset)
                before = current
        raise TransientError("refused too often")

    patch_in(stack, ManifestRepository, "commit", commit)


@mutant("an agent that lost to a higher fence continues with its own")
def ignore_fence(stack: ExitStack) -> None:
    real = ManifestRepository.commit

    def commit(self: ManifestRepository, before: Versioned | None, after: Head) -> Versioned:
        try:
            return real(self, before, after)
        except Fenced:
            current = self.load(after.partition_id)
            head = replace(after, version=(current.head.version if current else 0) + 1, commit_id=self._new_id())
            self._store.replace(keys.head(after.partition_id), encode_head(head), expected_tag=current.tag if current else "")
            raise

    patch_in(stack, ManifestRepository, "commit", commit)


@mutant("a fenced agent claims again and commits what it uploaded before", noted=36)
def reuse_upload(stack: ExitStack) -> None:
    real_upload, real_commit = Uploads.upload_all, PartitionArchiver._commit
    left: dict[int, Entry] = {}

    def upload_all(self: Uploads, uploads: Sequence[NewUpload]) -> list[Entry]:
        entry, kept = uploads[0].entry, left.get(id(self))
        if kept and (kept.base_offset, kept.last_offset, kept.digest) == (entry.base_offset, entry.last_offset, entry.digest):
            return [kept, *real_upload(self, uploads[1:])]
        return real_upload(self, uploads)

    def commit(self: PartitionArchiver, after: Head, *args: Any, **kwargs: Any) -> Head:
        if after.entries and not kwargs.get("claims"):
            left[id(self._uploads)] = after.entries[-1]
        return real_commit(self, after, *args, **kwargs)

    patch_in(stack, Uploads, "upload_all", upload_all)
    patch_in(stack, PartitionArchiver, "_commit", commit)


@mutant("the loser of a commit deletes its object, having looked at the head only by version", theme="gaps", noted=151)
def loser_deletes(stack: ExitStack) -> None:
    real = PartitionArchiver._commit

    def commit(self: PartitionArchiver, after: Head, *args: Any, **kwargs: Any) -> Head:
        try:
            return real(self, after, *args, **kwargs)
        except (CommitLost, Fenced, UnknownOutcome):
            if after.entries and after.entries[-1].fence == after.fence:
                self._held._repository.store.delete(after.entries[-1].key)
            raise

    patch_in(stack, PartitionArchiver, "_commit", commit)


@mutant("the fence is the leader epoch", noted=4)
def fence_from_epoch(stack: ExitStack) -> None:
    real = PartitionArchiver._commit

    def commit(self: PartitionArchiver, after: Head, *args: Any, **kwargs: Any) -> Head:
        if kwargs.get("claims"):
            held = self.head
            after = replace(after, fence=max(after.leader_epoch, held.fence if held else 0))
        return real(self, after, *args, **kwargs)

    patch_in(stack, PartitionArchiver, "_commit", commit)
    patch_in(stack, ManifestRepository, "_check_succession", staticmethod(lambda *_: None))
    patch_in(stack, manifests.repository, "_is_fenced", lambda mine, theirs: theirs.fence > mine.fence)


@mutant("nothing is announced in the control log")
def never_announced(stack: ExitStack) -> None:
    patch_in(stack, Announcer, "announce", lambda *_, **__: None)
