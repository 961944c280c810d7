"""The metadata of a whole cluster, restored and compared: what is lacking or made up is found, and nothing secret is said of it."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headwater.drill.drill_report import DrillOutcome, encode_report
from headwater.drill.metadata_check import FILE
from headwater_core.segments.metadata.cluster_metadata import ClusterMetadata
from headwater_core.segments.metadata.metadata_snapshot import read_snapshot, write_snapshot
from headwater_core.segments.metadata.record_schemas import ACL, QUOTA, SCRAM, TOKEN, make_record
from tests.headwater.drill.test_drill_run import drill
from tests.headwater_core.segments.metadata.test_metadata_snapshot import TOKEN_FIELDS
from tests.recovery.test_cluster_state import Kitchen

GROUP, TELEMETRY, DEFAULTS, BROKER = (32, "waiters"), (16, "kitchen-telemetry"), (4, ""), (4, "1")


@pytest.fixture(scope="module")
def kitchen() -> Kitchen:
    """With a record of each kind."""
    state = Kitchen().state
    token = {"token-one": make_record(TOKEN, 0, TOKEN_FIELDS)}
    made = Kitchen(
        others={**state.others, TOKEN: token},
        configs={**state.configs, GROUP: {"consumer.session.timeout.ms": "50000"}},
        config_tags={(*DEFAULTS, next(iter(state.configs[DEFAULTS]))): ((77, b"later"),)},
    )
    assert {DEFAULTS, BROKER, GROUP, TELEMETRY} <= made.state.configs.keys()
    return made


def test_a_cluster_comes_back_with_all_that_its_snapshot_holds(kitchen: Kitchen, tmp_path: Path) -> None:
    report = drill(kitchen.store, tmp_path, cluster=True)
    others, state = kitchen.state.others, kitchen.state
    assert (report.outcome, report.findings) == (DrillOutcome.PASSED, ())
    wanted = {"users": len(others[SCRAM]), "ACLs": len(others[ACL]), "quotas": len(others[QUOTA]), "tokens": 1}
    wanted |= {"settings": sum(map(len, state.configs.values())), "feature levels": len(state.features)}
    assert report.metadata == {"topics": len(state.topics)} | wanted
    assert all(report.metadata.values())
    for record in others[SCRAM].values():
        assert record.raw not in encode_report(report)
    assert any("REGISTER_BROKER_RECORD" in each for each in report.unchecked)


def test_a_sample_of_a_cluster_has_all_topics(kitchen: Kitchen, tmp_path: Path) -> None:
    report = drill(kitchen.store, tmp_path, cluster=True, share=0.1, seed=3)
    assert report.outcome is DrillOutcome.PASSED
    assert report.metadata["topics"] == len(kitchen.state.topics)
    assert 0 < report.compared.runs < report.selected.runs


def test_a_drill_of_topics_says_that_the_cluster_was_not_compared(kitchen: Kitchen, tmp_path: Path) -> None:
    report = drill(kitchen.store, tmp_path)
    assert report.metadata.keys() == {"topics"}
    unchecked, _ = report.unchecked
    assert "settings of brokers, groups and client metrics" in unchecked


def replaced_by(other: Callable[[Path], bytes]) -> Callable[[Path], object]:
    return lambda log_dir: (log_dir / FILE).write_bytes(other(log_dir))


def flipped(log_dir: Path) -> bytes:
    raw = bytearray((log_dir / FILE).read_bytes())
    raw[len(raw) // 2] ^= 1
    return bytes(raw)


@pytest.mark.parametrize("change", ["flipped", "gone", "of topics alone", "of another cluster"])
def test_other_metadata_is_found(change: str, kitchen: Kitchen, tmp_path: Path) -> None:
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


def _without(kind: int) -> Callable[[ClusterMetadata], Any]:
    """Lacks one record of this kind."""
    return lambda state: {"others": {**state.others, kind: dict(list(state.others[kind].items())[1:])}}


def _with_settings(resource: tuple[int, str], settings: Mapping[str, str] | None = None) -> Callable[[ClusterMetadata], Any]:
    """Has these settings of it; None: lacks one of those that it had."""
    return lambda state: {"configs": {**state.configs, resource: settings or dict(list(state.configs[resource].items())[1:])}}


def _with_topic(**changes: object) -> Callable[[ClusterMetadata], Any]:
    return lambda state: {"topics": {**state.topics, "menu": replace(state.topics["menu"], **changes)}}  # type: ignore[arg-type]


def _with_older_epochs(state: ClusterMetadata) -> Any:
    menu = state.topics["menu"]
    partitions = {number: replace(partition, leader_epoch=-1) for number, partition in menu.partitions.items()}
    return {"topics": {**state.topics, "menu": replace(menu, partitions=partitions)}}


MISTAKES: Mapping[str, Callable[[ClusterMetadata], Any]] = {
    "a user is lost": _without(SCRAM),
    "an ACL is lost": _without(ACL),
    "a quota is lost": _without(QUOTA),
    "a token is lost": _without(TOKEN),
    "the settings of a group are lost": lambda state: {"configs": {name: each for name, each in state.configs.items() if name != GROUP}},
    "a setting of a group is another": _with_settings(GROUP, {"consumer.session.timeout.ms": "45000"}),
    "a setting of client metrics is lost": _with_settings(TELEMETRY),
    "a setting of all brokers is lost": _with_settings(DEFAULTS),
    "a setting of one broker is lost": _with_settings(BROKER),
    "another broker has settings": _with_settings((4, "7"), {"log.retention.ms": "1"}),
    "an unknown field of a setting is lost": lambda _: {"config_tags": {}},
    "producer ids begin again": lambda _: {"next_producer_id": 0},
    "producer ids begin within the logs": lambda _: {"next_producer_id": 1},
    "a feature has another level": lambda state: {"features": {**state.features, "group.version": 0}},
    "a feature is lost": lambda state: {"features": {"metadata.version": state.features["metadata.version"]}},
    "records that nobody knows are made up": lambda _: {"unknown": (make_record(23, 0, {}).raw[:1] + b"\x63\x00\x00",)},
    "a topic is lost": lambda state: {"topics": {name: each for name, each in state.topics.items() if name != "menu"}},
    "a topic has another id": _with_topic(topic_id="le4ruHkrRAmAJUx9PH5t3A"),
    "a topic has other settings": _with_topic(configs={"cleanup.policy": "compact,delete"}),
    "a topic has fewer partitions": _with_topic(partitions={}),
    "a topic has lower leader epochs": _with_older_epochs,
    "an unknown field of a topic is made up": _with_topic(tags=((77, b"later"),)),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_recovery_that_loses_or_changes_something_does_not_pass(mistake: str, kitchen: Kitchen, tmp_path: Path) -> None:
    def meddle(log_dir: Path) -> None:
        state = read_snapshot((log_dir / FILE).read_bytes(), FILE)
        changed = replace(state, **MISTAKES[mistake](state))
        assert changed != state
        (log_dir / FILE).write_bytes(write_snapshot(changed, secrets=True, timestamp_ms=0))

    report = drill(kitchen.store, tmp_path, meddle=meddle, cluster=True)
    assert report.outcome is DrillOutcome.FAILED
    assert {each.where for each in report.findings} <= {"metadata", "headwater"}
    assert "metadata" in {each.where for each in report.findings}


def test_a_plan_that_lost_the_settings_of_a_topic_is_found(kitchen: Kitchen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The restored file is what the plan says; the plan is wrong."""
    from recovery import planner

    monkeypatch.setattr(planner, "_configs", lambda *_: ({}, {}))
    report = drill(kitchen.store, tmp_path, cluster=True)
    assert report.outcome is DrillOutcome.FAILED
    assert all("settings than the snapshot" in each.text for each in report.findings)


def test_a_disk_that_gives_no_file_is_no_damage(kitchen: Kitchen, tmp_path: Path) -> None:
    def turn_into_directory(log_dir: Path) -> None:
        (log_dir / FILE).unlink()
        (log_dir / FILE).mkdir()

    from headwater_core.errors import HeadwaterError

    with pytest.raises(HeadwaterError, match="Is a directory"):
        drill(kitchen.store, tmp_path, meddle=turn_into_directory, cluster=True)
