"""Mistakes about how runs lie in objects."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

import msgspec

import headwater_core.layouts.blocks.blocks_layout
from archival.partition.uploads import Uploads
from headwater_core.errors import AlreadyExists, UnknownOutcome
from headwater_core.layouts import NewRun, Offloaded
from headwater_core.layouts.blocks import BlocksLayout
from headwater_core.objectstore.store import NewObject, ObjectStore
from manifests.entry import Entry
from tests.simulation.mutants.mutant import mutant, patch_in


@mutant("a block object that got no answer is taken for there", theme="layouts", noted=10)
def blocks_unconfirmed(stack: ExitStack) -> None:
    def put_all(store: Any, objects: Sequence[NewObject], digests: Sequence[str]) -> None:
        for each in objects:
            with suppress(AlreadyExists, UnknownOutcome):
                store.put_all([each])

    patch_in(stack, headwater_core.layouts.blocks.blocks_layout, "put_all_confirmed", put_all)


@mutant("the manifest lists a block object's own length and digest as its run's", theme="layouts", noted=2)
def blocks_as_runs(stack: ExitStack) -> None:
    real = BlocksLayout.offload

    def offload(self: BlocksLayout, store: ObjectStore, runs: Sequence[NewRun], extra_metadata: Mapping[str, str]) -> list[Offloaded]:
        return [replace(done, run_bytes=done.size_bytes, run_digest=done.digest) for done in real(self, store, runs, extra_metadata)]

    patch_in(stack, BlocksLayout, "offload", offload)


@mutant("an entry says the layout that is set now, whatever its object was written in", theme="layouts")
def layout_of_the_setting(stack: ExitStack) -> None:
    real = Uploads._send
    first: list[str] = []

    def send(self: Uploads, uploads: Sequence[Any]) -> list[Entry]:
        first.append(self._offloader.name)
        return [msgspec.structs.replace(entry, layout=first[0]) for entry in real(self, uploads)]

    patch_in(stack, Uploads, "_send", send)
