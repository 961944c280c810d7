"""The metadata of a whole cluster, restored and compared: what is lacking or made up is found, and nothing secret is said of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headwater.drill.drill_report import DrillOutcome, encode_report
from headwater.drill.metadata_check import FILE
from headwater_core.segments.metadata.record_schemas import ACL, QUOTA, SCRAM
from tests.headwater.drill.test_drill_run import drill
from tests.recovery.test_cluster_state import Kitchen


@pytest.fixture(scope="module")
def kitchen() -> Kitchen:
    return Kitchen()


def test_a_cluster_comes_back_with_users_acls_and_quotas(kitchen: Kitchen, tmp_path: Path) -> None:
    report = drill(kitchen.store, tmp_path, cluster=True)
    others = kitchen.state.others
    assert (report.outcome, report.findings) == (DrillOutcome.PASSED, ())
    wanted = {"users": len(others[SCRAM]), "ACLs": len(others[ACL]), "quotas": len(others[QUOTA]), "tokens": 0}
    assert report.metadata == {"topics": len(kitchen.state.topics)} | wanted
    assert wanted["users"] > 0
    for record in others[SCRAM].values():
        assert record.raw not in encode_report(report)


def test_a_sample_of_a_cluster_has_all_topics(kitchen: Kitchen, tmp_path: Path) -> None:
    report = drill(kitchen.store, tmp_path, cluster=True, share=0.1, seed=3)
    assert report.outcome is DrillOutcome.PASSED
    assert report.metadata["topics"] == len(kitchen.state.topics)
    assert 0 < report.compared.runs < report.selected.runs


def replaced_by(other: Callable[[Path], bytes]) -> Callable[[Path], object]:
    return lambda log_dir: (log_dir / FILE).write_bytes(other(log_dir))


def flipped(log_dir: Path) -> bytes:
    raw = bytearray((log_dir / FILE).read_bytes())
    raw[len(raw) // 2] ^= 1
    return bytes(raw)


@pytest.mark.parametrize("change", ["flipped", "gone", "of topics alone", "of another cluster"])
def test_other_metadata_is_found(change: str, kitchen: Kitchen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other: dict[str, Any] = {"flipped": replaced_by(flipped), "gone": lambda log_dir: (log_dir / FILE).unlink()}
    if change not in other:
        others = {} if change == "of topics alone" else kitchen.state.others
        features = kitchen.state.features if change == "of topics alone" else {**kitchen.state.features, "group.version": 0}
        from recovery import apply, plan

        made = Kitchen(others=others, features=features)
        apply(plan(made.repository, None if change == "of topics alone" else ["menu"], _cluster()), tmp_path / "other", made.store)
        other[change] = replaced_by(lambda _: (tmp_path / "other" / FILE).read_bytes())
    report = drill(kitchen.store, tmp_path / "base", meddle=other[change], cluster=True)
    assert report.outcome is DrillOutcome.FAILED
    assert {each.where for each in report.findings} == {"metadata"}


def _cluster() -> Any:
    from recovery import Options

    return Options(cluster="latest", unlisted_topics=True)
