"""Topics of a recovery, created in the running cluster once."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import recovery
from headwater_core import milestones
from headwater_core.errors import ForeignOwner, TransientError, UsageError
from manifests.repository import ManifestRepository
from recovery.held_settings import LogBounds
from recovery.recovery_plan import RecoveryPlan
from recovery.topic_creation import PRODUCER_IDS_MAX, with_created_topics
from tests.recovery.running import Running
from tests.recovery.written_archive import Archive, data, marker, plain


@pytest.fixture
def archive() -> Archive:
    archive = Archive()
    archive.topic("orders", [plain(0, 4)], **{"retention.ms": "600"})
    archive.topic("bills", [data(0, 5000), marker(1, 5000)])
    return archive


def planned(archive: Archive, cluster: Running, **options: Any) -> RecoveryPlan:
    return recovery.plan(ManifestRepository(archive.store), None, recovery.Options(running=True, **options), running=cluster)


def test_they_get_the_ids_that_the_cluster_gives_and_the_planned_settings(archive: Archive) -> None:
    cluster = Running()
    plan = planned(archive, cluster)
    assert [topic.topic_id for topic in plan.topics] == ["", ""]
    assert cluster.topics == {}  # a plan creates nothing
    made = with_created_topics(plan, cluster)
    assert {topic.topic: topic.topic_id for topic in made.topics} == {name: topic.topic_id for name, topic in cluster.topics.items()}
    assert cluster.settings["orders"]["retention.ms"] == "-1"
    assert made.recovery_id == plan.recovery_id


def test_what_was_created_without_an_answer_is_recognised(archive: Archive) -> None:
    cluster = Running(lost_answers=2)
    plan = planned(archive, cluster)
    made = with_created_topics(plan, cluster)
    assert all(topic.topic_id for topic in made.topics)
    assert with_created_topics(plan, cluster) == made
    again = planned(archive, cluster)
    assert again.problems == ()
    assert again.running is not None
    assert again.running.present == ("bills", "orders")
    assert [each.topic_id for each in with_created_topics(again, cluster).topics] == [each.topic_id for each in made.topics]


def test_one_whose_creation_nobody_answers_may_still_come(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Running()
    plan = planned(archive, cluster)
    monkeypatch.setattr(cluster, "create_topics", lambda topics: {})
    with pytest.raises(TransientError, match="not known yet whether it was created: 2 topics"):
        with_created_topics(plan, cluster)


def test_a_topic_that_somebody_has_made_or_used_meanwhile_is_not_taken(archive: Archive) -> None:
    cluster = Running()
    plan = planned(archive, cluster)
    cluster.add("orders", (1,), (1,))
    with pytest.raises(UsageError, match="not as it was planned"):
        with_created_topics(plan, cluster)
    cluster.add("orders", (1,))
    cluster.bounds["orders", 0] = LogBounds(0, 3)
    with pytest.raises(UsageError, match="holds or held records"):
        with_created_topics(plan, cluster)
    cluster.silent.add(("orders", 0))
    with pytest.raises(TransientError, match="orders:0 has no leader"):
        with_created_topics(plan, cluster)


def test_another_cluster_and_a_refusal_are_said(archive: Archive) -> None:
    plan = planned(archive, Running())
    with pytest.raises(ForeignOwner, match="of cluster another"):
        with_created_topics(plan, Running(name="another"))
    with pytest.raises(UsageError, match="POLICY_VIOLATION"):
        with_created_topics(plan, Running(refuses={"orders"}))


def test_new_producers_get_no_ids_of_the_logs_where_the_cluster_can_pass_them(archive: Archive) -> None:
    cluster = Running()
    made = with_created_topics(planned(archive, cluster), cluster)
    assert cluster.next_producer_id > 5000
    assert not [note for note in made.notes if "more than" in note]
    [topic] = [topic for topic in made.topics if topic.topic == "bills"]
    far = replace(topic, partitions=(replace(topic.partitions[0], max_producer_id=10 * PRODUCER_IDS_MAX),))
    plan = replace(planned(archive, Running()), topics=(replace(far, topic_id=""),))
    noted = with_created_topics(plan, Running())
    assert [note for note in noted.notes if f"up to {10 * PRODUCER_IDS_MAX}" in note]


class Killed(BaseException):
    pass


def test_killed_after_they_were_created_the_next_run_uses_them(archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Running()

    def apply() -> recovery.RecoveryReport:
        request = recovery.request_of(None, recovery.Options(running=True))
        plan = recovery.begun_plan(tmp_path, request) or planned(archive, cluster)
        return recovery.apply(plan, tmp_path, archive.store, create=lambda made: with_created_topics(made, cluster))

    for step in ("recover.created", "recover.marked", "recover.verified"):

        def kill(name: str, step: str = step) -> None:
            if name == step:
                raise Killed

        monkeypatch.setattr(milestones, "observer", kill)
        with pytest.raises(Killed):
            apply()
    ids = {name: topic.topic_id for name, topic in cluster.topics.items()}
    monkeypatch.setattr(milestones, "observer", lambda name: None)
    assert apply().resumed
    made = recovery.running_plan(tmp_path)
    assert made is not None
    assert {topic.topic: topic.topic_id for topic in made.topics} == ids
    cluster.bounds["orders", 0] = LogBounds(0, 4)  # it is in place, and used
    assert apply().again


def test_nothing_is_created_for_a_plan_that_cannot_be_applied(archive: Archive, tmp_path: Path) -> None:
    cluster = Running()
    plan = replace(planned(archive, cluster), problems=("one",))
    with pytest.raises(UsageError, match="cannot be applied"):
        recovery.apply(plan, tmp_path / "one", archive.store, create=lambda made: with_created_topics(made, cluster))
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "something").touch()
    with pytest.raises(UsageError, match="not empty"):
        recovery.apply(planned(archive, cluster), tmp_path / "two", archive.store, create=lambda made: with_created_topics(made, cluster))
    with pytest.raises(UsageError, match="--bootstrap-servers"):
        recovery.apply(planned(archive, cluster), tmp_path / "three", archive.store)
    assert cluster.topics == {}
