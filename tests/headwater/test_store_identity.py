"""A data directory archives to the store that it knows, and to no other: not to a new one, not below an empty mount point."""

import shutil
import threading
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from archival.archive_pass import archive_all
from archival.plan.policy import Policy
from headwater.config import load
from headwater.session import open_session
from headwater.store_identity import (
    AGAIN_S,
    NAME,
    RETRY_MAX_S,
    RETRY_S,
    Gate,
    StoreIdentity,
    check_belongs,
    decide_owner,
    read_identity,
    settle,
)
from headwater_core.errors import CorruptData, ForeignOwner, HeadwaterError, StoreGone, TransientError, UsageError, WrongStore
from headwater_core.objectstore.directory import DirectoryStore
from headwater_core.objectstore.probe import probe_store
from manifests import keys
from manifests.repository import ManifestRepository
from manifests.topic import Owner, decode_owner, encode_owner, given_to
from tests.headwater.broker import CLUSTER, Broker
from tests.headwater.conftest import Stage
from tests.headwater_core.manual_clock import ManualClock
from tests.headwater_core.objectstore.memory import MemoryStore

ID, OTHER = "0" * 32, "1" * 32
KNOWN = StoreIdentity(url="file:///a", cluster_id="kitchen", store_id=ID)


def decided(known: StoreIdentity | None, owner: Owner | None, url: str = "file:///a", cluster_id: str = "kitchen") -> Owner | None:
    return decide_owner(known, owner, url=url, data_dir=Path("/state"), cluster_id=cluster_id, fresh_id=OTHER)


def test_a_new_data_directory_takes_an_empty_store_and_adopts_one_that_is_its_clusters() -> None:
    assert decided(None, None) == Owner(cluster_id="kitchen", store_id=OTHER)
    assert decided(None, Owner(cluster_id="kitchen")) == Owner(cluster_id="kitchen", store_id=OTHER)
    assert decided(None, Owner(cluster_id="kitchen", store_id=ID)) is None


def test_what_both_know_stands_wherever_the_store_is_found_now() -> None:
    assert decided(KNOWN, Owner(cluster_id="kitchen", store_id=ID)) is None
    assert decided(KNOWN, Owner(cluster_id="kitchen", store_id=ID), "s3://moved") is None
    assert decided(KNOWN, Owner(cluster_id="kitchen")) == Owner(cluster_id="kitchen", store_id=ID)  # restored from before it had an id


def test_another_store_is_refused() -> None:
    for owner in (None, Owner(cluster_id="kitchen", store_id=OTHER), Owner(cluster_id="kitchen")):
        with pytest.raises(WrongStore, match="belongs to file:///a, not to file:///b"):
            decided(KNOWN, owner, "file:///b")
    with pytest.raises(WrongStore, match="another archive is in its place"):
        decided(KNOWN, Owner(cluster_id="kitchen", store_id=OTHER))


def test_a_store_that_is_empty_now_is_refused() -> None:
    with pytest.raises(StoreGone, match=r"mount it.*remove /state/store.json and /state/control"):
        decided(KNOWN, None)


def test_another_clusters_store_is_refused_with_the_way_that_works() -> None:
    with pytest.raises(ForeignOwner, match=r"--cluster-id kitchen.*old cluster must never start again"):
        decided(None, Owner(cluster_id="kitchen", store_id=ID), cluster_id="recovered")


def test_agents_that_settle_one_store_at_once_come_to_one_id(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "bucket")
    barrier = threading.Barrier(6)

    def agent(number: int) -> None:
        directory = tmp_path / str(number)
        directory.mkdir()
        barrier.wait()
        settle(
            ManifestRepository(store),
            url=store.url,
            data_dir=directory,
            cluster_id="kitchen",
            fresh_id=f"{number:032x}",
            remembered=False,
            before_writing=lambda: probe_store(store),
        )

    threads = [threading.Thread(target=agent, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    known = [read_identity(tmp_path / str(number)) for number in range(6)]
    owner = decode_owner(store.get(keys.OWNER)[0])
    assert {each.store_id for each in known if each} == {owner.store_id}
    assert None not in known


def test_a_cluster_whose_archive_was_taken_over_may_read_it_and_pauses_nothing(tmp_path: Path) -> None:
    manifests, new = ManifestRepository(MemoryStore()), "A" * 21 + "Q"
    where = {"url": "memory:", "data_dir": tmp_path}
    settle(manifests, **where, cluster_id=CLUSTER, fresh_id="ab" * 16, remembered=False, before_writing=lambda: None)  # type: ignore[arg-type]
    assert check_belongs(manifests, **where, to_write=True)  # type: ignore[arg-type]
    manifests.settle_owner(lambda owner: given_to(owner, CLUSTER, new))
    assert check_belongs(manifests, **where)  # type: ignore[arg-type]
    with pytest.raises(ForeignOwner, match="a recovered one has the archive now"):
        check_belongs(manifests, **where, to_write=True)  # type: ignore[arg-type]


def test_a_store_with_an_impossible_id_is_damaged() -> None:
    with pytest.raises(UsageError):
        encode_owner(Owner(cluster_id="kitchen", store_id="../x"))


def test_a_damaged_store_json_is_said(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b"{}")
    with pytest.raises(CorruptData, match=r"store\.json.*if the configured store is the archive .* remove the file"):
        read_identity(tmp_path)


def test_a_gate_asks_again_after_a_pause_and_never_once_it_is_open() -> None:
    clock, asked, failing = ManualClock(), list[int](), [TransientError("away")]

    def check() -> None:
        asked.append(1)
        if failing:
            raise failing[0]

    gate = Gate(check, clock)
    for _ in range(3):
        with pytest.raises(TransientError, match="away"):
            gate.open()
    assert len(asked) == 1
    failing.clear()
    clock.advance(int(RETRY_S * 1000))
    for _ in range(3):
        with gate.passing():
            pass
    assert len(asked) == 2


def test_a_gate_asks_less_often_the_longer_the_store_is_away() -> None:
    clock, asked_s = ManualClock(), list[float]()

    def check() -> None:
        asked_s.append(clock.monotonic_s())
        raise TransientError("away")

    gate = Gate(check, clock)
    for _ in range(60):
        with pytest.raises(TransientError, match="away"):
            gate.open()
        clock.advance(500)
    assert [after - before for before, after in pairwise(asked_s)] == [RETRY_S, 2 * RETRY_S, 4 * RETRY_S, 8 * RETRY_S, RETRY_MAX_S]


def test_a_gate_closes_when_the_store_is_found_gone_and_opens_when_it_is_back() -> None:
    clock, gone, opened = ManualClock(), list[HeadwaterError](), list[int]()

    def again() -> None:
        for error in gone:
            raise error

    gate = Gate(again, clock, again=again, opened=lambda: opened.append(1))
    gate.open()
    gone.append(TransientError("away"))  # says nothing about whose store it is
    clock.advance(int(AGAIN_S * 1000))
    gate.open()
    gone[:] = [StoreGone("not mounted")]
    gate.open()  # asked a moment ago
    clock.advance(int(AGAIN_S * 1000))
    for _ in range(2):
        with pytest.raises(StoreGone):
            gate.open()
    gone.clear()
    clock.advance(int(RETRY_S * 1000))
    gate.open()
    assert opened == [1]


@pytest.mark.parametrize("in_its_place", ["an empty mount point", "another archive of the same cluster"])
def test_an_archive_whose_disk_goes_right_after_the_check_is_not_begun_anew(tmp_path: Path, in_its_place: str) -> None:
    broker, bucket = Broker(tmp_path / "log"), tmp_path / "bucket"
    broker.partition("soup", 0, 1)
    given = {"node.data_dir": str(tmp_path / "state"), "store.url": f"file://{bucket}", "log.dirs": [str(broker.root)]}
    with open_session(load(None, {}, {**given, "log.owned": True})) as held:
        bucket.rename(tmp_path / "away")
        bucket.mkdir()
        if "another" in in_its_place:
            DirectoryStore(bucket).create(keys.OWNER, encode_owner(Owner(cluster_id=CLUSTER, store_id=OTHER)))
        before = sorted(bucket.rglob("*"))
        assert held.fleet is not None
        outcomes = list(archive_all(held.fleet, Policy.of))
        assert {type(each.error) for each in outcomes} <= {StoreGone, WrongStore}
        assert len(outcomes) == 2
    assert sorted(bucket.rglob("*")) == before


# The whole program


def test_another_store_for_the_same_data_directory_is_refused_before_anything_is_written(stage: Stage) -> None:
    log = stage.log("pantry")
    assert stage.run("archive", log=log).code == 0
    other = f"file://{stage.root}/other"
    for verb in ("archive", "flush", "status"):
        refused = stage.run(verb, "--store", other, log=log)
        assert refused.code == 2, refused.err
        assert f"belongs to file://{stage.bucket}, not to {other}" in refused.err.replace("\n", " ")
        assert not (stage.root / "other").exists()
    assert stage.run("archive", log=log).code == 0


def test_nothing_is_made_below_an_empty_mount_point(stage: Stage) -> None:
    log = stage.log("pantry")
    assert stage.run("archive", log=log).code == 0
    away = stage.root / "away"
    stage.bucket.rename(away)
    for mount_point in (False, True):
        if mount_point:
            stage.bucket.mkdir()
        for verb in ("flush", "status"):
            refused = stage.run(verb, log=log)
            assert refused.code == 2, refused.err
            assert "mount it" in refused.err.replace("\n", " ")
        assert not stage.bucket.exists() or list(stage.bucket.iterdir()) == []
    stage.bucket.rmdir()
    away.rename(stage.bucket)
    assert stage.run("flush", log=log).code == 0
    assert stage.run("verify").code == 0


def test_a_store_that_was_emptied_on_purpose_is_begun_anew_when_somebody_says_so(stage: Stage) -> None:
    log = stage.log("pantry")
    assert stage.run("archive", log=log).code == 0
    shutil.rmtree(stage.bucket)
    assert stage.run("archive", log=log).code == 2
    (stage.data_dir / NAME).unlink()
    remembered = stage.run("archive", log=log)
    assert remembered.code == 2
    assert "knows of archived partitions" in remembered.err.replace("\n", " ")
    shutil.rmtree(stage.data_dir / "control")
    again = stage.run("archive", "-o", "jsonl", log=log)
    assert again.code == 0
    assert sum(row["objects"] for row in again.rows) > 0


def test_a_moved_store_is_the_same_store(stage: Stage) -> None:
    log = stage.log("pantry")
    assert stage.run("archive", log=log).code == 0
    stage.bucket.rename(stage.root / "moved")
    moved = f"file://{stage.root}/moved"
    assert stage.run("flush", "--store", moved, log=log).code == 0
    known = read_identity(stage.data_dir)
    assert known is not None
    assert known.url == moved


def test_data_directories_and_buckets_of_before_are_adopted(stage: Stage) -> None:
    log = stage.log("pantry")
    assert stage.run("archive", log=log).code == 0
    (stage.data_dir / NAME).unlink()
    store = DirectoryStore(stage.bucket)
    raw, tag = store.get(keys.OWNER)
    store.replace(keys.OWNER, encode_owner(msgspec.structs.replace(decode_owner(raw), store_id=None)), expected_tag=tag)
    assert stage.run("flush", log=log).code == 0
    known = read_identity(stage.data_dir)
    assert known is not None
    assert decode_owner(store.get(keys.OWNER)[0]).store_id == known.store_id


def test_verbs_that_only_read_make_no_data_directory(stage: Stage) -> None:
    log = stage.log("pantry")
    assert stage.run("archive", log=log).code == 0
    shutil.rmtree(stage.data_dir)
    assert stage.run("topics", "list").code == 0
    assert stage.run("read", "recipes.lz4", "-o", "jsonl").code == 0
    assert not (stage.data_dir / NAME).exists()


def test_a_memory_store_takes_an_id_too() -> None:
    manifests = ManifestRepository(MemoryStore())
    assert manifests.settle_owner(lambda seen: None if seen else Owner(cluster_id="kitchen", store_id=ID)).store_id == ID
    assert manifests.settle_owner(lambda _: None) == Owner(cluster_id="kitchen", store_id=ID)
