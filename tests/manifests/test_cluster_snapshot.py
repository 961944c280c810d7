"""The object of a snapshot: what it says of itself, to Headwater and to gunzip."""

import gzip
import subprocess

import pytest
from msgspec.structs import replace

from headwater_core.errors import CorruptData
from headwater_core.segments.metadata.metadata_snapshot import write_snapshot
from headwater_core.segments.metadata.record_schemas import SCRAM
from manifests.cluster_snapshot import SnapshotFacts, content_of, facts_of, pack_snapshot, unpack_snapshot
from tests.archival.cluster_world import a_state

STATE = a_state(3, 77, 5)
FACTS = SnapshotFacts(cluster_id="kitchen", number=4, end_offset=77, end_epoch=3, uid="a" * 32, has_secrets=True, unknown=2)


def test_it_is_gzip_of_kafkas_own_format_and_says_what_it_is() -> None:
    packed = pack_snapshot(STATE, FACTS)
    done = subprocess.run(["gunzip", "-c"], input=packed, check=True, capture_output=True)
    assert done.stdout == gzip.decompress(packed) == write_snapshot(STATE, secrets=True, timestamp_ms=0)
    assert facts_of(packed, "it") == FACTS
    assert unpack_snapshot(packed, "it", end_offset=77, end_epoch=3) == STATE


def test_one_without_secrets_says_so_itself() -> None:
    packed = pack_snapshot(STATE, replace(FACTS, has_secrets=False))
    facts = facts_of(packed, "it")
    assert facts is not None
    assert not facts.has_secrets
    assert SCRAM not in unpack_snapshot(packed, "it").others
    assert content_of(unpack_snapshot(packed, "it")).content == content_of(STATE).open_content


def test_one_of_before_says_nothing() -> None:
    packed = gzip.compress(write_snapshot(STATE, secrets=True, timestamp_ms=0))
    assert facts_of(packed, "it") is None
    assert unpack_snapshot(packed, "it", end_offset=77, end_epoch=3) == STATE


def test_a_changed_byte_never_changes_what_it_says() -> None:
    packed = pack_snapshot(STATE, FACTS)
    for at in range(len(packed)):
        for bit in (1, 0x80):
            broken = packed[:at] + bytes([packed[at] ^ bit]) + packed[at + 1 :]
            try:
                facts = facts_of(broken, "broken")
            except CorruptData:
                continue
            assert facts in (None, FACTS)


@pytest.mark.parametrize("cut", [11, 40, 300])
def test_one_that_was_cut_is_damage(cut: int) -> None:
    packed = pack_snapshot(STATE, FACTS)
    with pytest.raises(CorruptData):
        unpack_snapshot(packed[:cut], "cut")
