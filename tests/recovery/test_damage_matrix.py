"""Buckets that are damaged in several ways at once: every damage is named, nothing wrong is written, everything sound comes back.

`DAMAGE_SEEDS=10000` draws more of them (`make soak`).
"""

import os
from collections import Counter
from pathlib import Path

import pytest

import recovery
from headwater_core.errors import NothingExamined, UsageError, VerificationFailed
from manifests import page_limits
from manifests.repository import ManifestRepository
from tests.manifests import trees
from tests.recovery.damaged_bucket import DamagedBucket
from tests.recovery.written_archive import batches_in

BLOCKS = 30
SEEDS = int(os.environ.get("DAMAGE_SEEDS", "300"))


def words(plan: recovery.RecoveryPlan) -> str:
    return "\n".join((*plan.left_out, *map(str, plan.holes), *plan.notes, *plan.endings, *plan.problems))


def check(seed: int, root: Path) -> DamagedBucket:
    bucket = DamagedBucket(seed)
    for _ in range(bucket.random.randint(1, 5)):
        bucket.damage()
    before = {info.key: bucket.store.get(info.key)[0] for info in bucket.store.list("")}
    into = root / str(seed) / "log"
    repository = ManifestRepository(bucket.store)
    sound = {place: bucket.sound(place) for place in bucket.logs}
    try:
        plan = recovery.plan(repository, None)
        said = words(plan)
        done = recovery.apply(plan, into, bucket.store, skip_damaged=True, recorded=False)
        said += "\n".join((*done.left_out, *done.notes))
    except (VerificationFailed, NothingExamined):
        if any(batches for place, batches in sound.items() if place not in bucket.doubtful):
            raise
        return bucket
    except UsageError:
        if not bucket.doubtful:
            raise
        return bucket
    finally:
        assert {info.key: bucket.store.get(info.key)[0] for info in bucket.store.list("")} == before
        assert [path.name for path in (root / str(seed)).iterdir()] in ([], ["log"]) if (root / str(seed)).exists() else True
    for words_of_it in bucket.must_be_said():
        assert words_of_it in said, f"{words_of_it} is not in {said}"
    for place, wanted in sound.items():
        directory = into / "{}-{}".format(*place)
        found = [raw for _, raw in batches_in(directory)] if directory.exists() else []
        if place in bucket.doubtful:
            assert set(found) <= set(bucket.everything(place)), place
            assert found == wanted or f"{place[0]}:" in said, place
        else:
            assert found == wanted, place
    return bucket


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
    assert len(did) > 5
