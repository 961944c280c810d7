"""Buckets that are damaged in several ways at once: every damage is named, nothing wrong is written, everything sound comes back.
Some are recovered, every third is drilled; half of each as a whole cluster, with its snapshot. What a drill lets pass is sound.

`DAMAGE_SEEDS=10000` draws more of them (`make soak`).
"""

import os
from collections import Counter
from pathlib import Path

import pytest

import recovery
from headwater.drill.drill_report import DrillOutcome, DrillRequest, decode_report, encode_report
from headwater.drill.drill_run import carry_out, prepare
from headwater.drill.equipment import DrillEquipment
from headwater.drill.scratch import open_scratch
from headwater_core.clock import SystemClock
from headwater_core.errors import CorruptData, NotFound, NothingExamined, UsageError, VerificationFailed
from manifests import page_limits
from manifests.repository import ManifestRepository
from tests.manifests import trees
from tests.recovery.damaged_bucket import DamagedBucket
from tests.recovery.written_archive import batches_in

BLOCKS = 30
DRILL_EVERY = 3  # of so many buckets one is drilled, and the others are recovered
DRILL_ID = "20260131T120000.123Z-9f86d081"
SEEDS = int(os.environ.get("DAMAGE_SEEDS", "270"))


def words(plan: recovery.RecoveryPlan) -> str:
    return "\n".join((*plan.left_out, *map(str, plan.holes), *plan.notes, *plan.endings, *plan.problems))


def check(seed: int, root: Path) -> DamagedBucket:
    bucket, cluster = DamagedBucket(seed), seed % 2 == 0
    for _ in range(bucket.random.randint(1, 5)):
        bucket.damage()
    before = {info.key: bucket.store.get(info.key)[0] for info in bucket.store.list("")}
    into = root / str(seed) / "log"
    repository = ManifestRepository(bucket.store)
    if seed % DRILL_EVERY == 0:
        check_drill(bucket, root / str(seed), cluster=cluster)
        assert {info.key: bucket.store.get(info.key)[0] for info in bucket.store.list("")} == before
        return bucket
    try:
        plan = recovery.plan(repository, None, recovery.Options(cluster="latest" if cluster else None))
        said = words(plan)
        done = recovery.apply(plan, into, bucket.store, skip_damaged=True, recorded=False)
        said += "\n".join((*done.left_out, *done.notes))
    except (VerificationFailed, NothingExamined, NotFound, CorruptData) as error:
        if not is_excused(bucket, cluster=cluster) and any(
            bucket.sound(place, str(error)) for place in bucket.logs if place not in bucket.doubtful
        ):
            raise
        return bucket
    except UsageError:
        if not bucket.doubtful:
            raise
        return bucket
    finally:
        assert {info.key: bucket.store.get(info.key)[0] for info in bucket.store.list("")} == before
        assert [path.name for path in (root / str(seed)).iterdir()] in ([], ["log"]) if (root / str(seed)).exists() else True
    came_back = {topic.topic for topic in done.topics}
    for words_of_it in bucket.must_be_said(came_back if cluster else ()):
        assert words_of_it in said, f"{words_of_it} is not in {said}"
    for place in bucket.logs:
        wanted = bucket.sound(place, said)
        directory = into / "{}-{}".format(*place)
        found = [raw for _, raw in batches_in(directory)] if directory.exists() else []
        if place in bucket.doubtful or (cluster and place[0] in bucket.gone):
            assert set(found) <= set(bucket.everything(place)), place
            assert found == wanted or place[0] in bucket.gone or f"{place[0]}:" in said, place
        else:
            assert found == wanted, place
    return bucket


def is_excused(bucket: DamagedBucket, *, cluster: bool) -> bool:
    """A snapshot that is harmed ends the recovery of a whole cluster, which is said; topics alone come back."""
    return cluster and bucket.is_cluster_harmed


def check_drill(bucket: DamagedBucket, directory: Path, *, cluster: bool) -> None:
    """What a drill says of the same: nothing that is damaged passes, and all of it is named."""
    equipment = DrillEquipment(store=bucket.store, clock=SystemClock(), version="1")
    wanted = {place: bucket.runs(place) for place in bucket.logs if place not in bucket.doubtful}
    try:
        prepared = prepare(equipment, DrillRequest(topics=None, cluster=cluster), DRILL_ID)
        with open_scratch(directory, DRILL_ID) as scratch:
            report = carry_out(equipment, prepared, scratch)
    except (VerificationFailed, NothingExamined, NotFound, CorruptData, UsageError):
        if (
            not bucket.doubtful
            and not is_excused(bucket, cluster=cluster)
            and any(entry.key not in bucket.harmed for runs in wanted.values() for entry, _ in runs)
        ):
            raise
        return
    assert decode_report(encode_report(report), "report") == report
    places = [f"{each.topic}:{each.partition} offsets {each.offset}-" for each in report.findings]
    said = "\n".join((*places, *map(str, report.findings), *report.left_out, *report.notes))
    for words_of_it in bucket.must_be_said({each.topic for each in report.windows} if cluster else ()):
        assert words_of_it in said, f"{words_of_it} is not in {said}"
    for place, runs in wanted.items():
        for entry, _ in runs:
            if entry.key in bucket.harmed:
                assert "{}:{} offsets {}-".format(*place, entry.base_offset) in said, entry.key
    if bucket.is_damaged():
        assert report.outcome is not DrillOutcome.PASSED or (cluster and bucket.gone), bucket.did
    elif not bucket.doubtful and not {"_owner", "_cluster"} & {*bucket.did}:
        assert (report.outcome, report.findings) == (DrillOutcome.PASSED, ()), bucket.did
    assert not cluster or report.metadata["users"] > 0
    sound = sum(entry.records for runs in wanted.values() for entry, _ in runs if entry.key not in bucket.harmed)
    assert report.compared.records >= sound


@pytest.mark.slow
@pytest.mark.parametrize("block", range(BLOCKS))
def test_any_damage_is_named_and_what_is_sound_comes_back(block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_limits, "LIMITS", trees.SMALL)
    did: Counter[str] = Counter()
    for seed in range(block, SEEDS, BLOCKS):
        try:
            bucket = check(seed, tmp_path)
        except BaseException as error:
            raise AssertionError(f"seed {seed}") from error
        did.update(bucket.did)
    assert len(did) > 3
