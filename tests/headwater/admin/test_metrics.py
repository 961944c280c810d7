"""What /metrics says, and that docs/metrics.md says it too."""

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as newer_families
from prometheus_client.parser import text_string_to_metric_families as older_families
from prometheus_client.samples import Sample

from archival.cluster_archiver import SnapshotTally
from archival.fleet import LOG_DIRS
from archival.partition_status import PartitionStatus
from archival.schedule.scheduler import SchedulerLoad
from headwater.admin.health import Health
from headwater.admin.metrics import STATES, Metrics, MetricSources
from headwater.admin.operations import KEPT_S, OTHER, VERBS, Operations, new_operation_id
from headwater.admin.status_board import BoardEntry, StatusBoard
from headwater.drill.drill_report import DrillOutcome
from headwater.drill.report_store import LastDrill
from headwater.gateway.gateway_meter import OTHER_API, GatewayMeter
from headwater.gateway.protocol import Api
from headwater_core.control.supervisor import ControlHealth
from headwater_core.errors import CorruptData, DiskFull, HeadwaterError, TransientError
from headwater_core.layouts.chunks.flush_plan import FlushLimits
from headwater_core.layouts.chunks.upload_pool import UploadPool
from headwater_core.layouts.streaming import OffloadBudget
from headwater_core.objectstore.store_meter import OPERATIONS, StoreMeter
from headwater_core.partition import TopicPartition
from hydration.archive.hydrator import Hydrator
from hydration.counters import ReadCounters
from manifests.cluster_list import ListedSnapshot
from tests.headwater.admin.statuses import a_status
from tests.headwater_core.manual_clock import ManualClock
from tests.test_layers import ROOT

OPEN = "application/openmetrics-text; version=1.0.0"

A_DRILL = LastDrill(id="d", outcome=DrillOutcome.FAILED, ended_ms=9000, passed_ms=5000, size_bytes=70, report="r")
A_SNAPSHOT = ListedSnapshot(number=7, end_offset=1, end_epoch=1, uid="a" * 32, taken_ms=5_000, size_bytes=1, unknown=3)


class Board:
    """A board with these entries."""

    def __init__(self, clock: ManualClock, *statuses: PartitionStatus) -> None:
        self.clock, self.last_commit_ms = clock, 1_700_000_000_000
        self._entries = [BoardEntry(each, clock.monotonic_s(), clock.monotonic_s()) for each in statuses]

    def entries(self) -> list[BoardEntry]:
        return self._entries


class Stage:
    def __init__(
        self,
        *statuses: PartitionStatus,
        partitions: bool = True,
        failures: dict[TopicPartition, HeadwaterError] | None = None,
        is_scrubbed: bool = True,
    ) -> None:
        self.clock, self.buffer = ManualClock(), OffloadBudget(1000)
        self.store, self.gateway = StoreMeter(self.clock), GatewayMeter()
        cache = SimpleNamespace(used_bytes=10, limit_bytes=100, evicted=3, bypassed=1)
        self.counters, self.pool = ReadCounters(), UploadPool()
        self.damaged: dict[str, set[str]] = {}
        self.operations = Operations(self.clock, new_operation_id)
        for verb in (
            ("verify", "recover") if is_scrubbed else ()
        ):  # most series of operations are there from the beginning, some after the first
            self.operations.begin(verb, {}).end({"examined": 9, "skipped": 0})
        self.gateway.passing(Api.FETCH)  # the same of a proxy's
        self.gateway.refusals["KAFKA_STORAGE_ERROR"] = 0
        self.gateway.upstream_failures[None] = 0
        sources = MetricSources(
            version="1.2.3",
            health=Health(live={}, ready={"store": lambda: "down", "gateway": lambda: ""}),
            store=self.store,
            gateway=self.gateway,
            hydrator=cast(Hydrator, SimpleNamespace(counters=self.counters, cache=cache, damaged=lambda: self.damaged)),
            control=lambda: ControlHealth("leader", 0.0, 17),
            operations=self.operations.tally,
            board=cast(StatusBoard, Board(self.clock, *statuses)),
            load=lambda: SchedulerLoad(2, 7),
            pool=self.pool,
            failure=lambda place: (failures or {}).get(place),
            partitions=partitions,
            snapshots=lambda: SnapshotTally(2, 1, A_SNAPSHOT),
            buffer=self.buffer,
            drill=lambda: A_DRILL,
        )
        self.metrics = Metrics(sources, self.clock.monotonic_s)

    def samples(self) -> list[Sample]:
        self.clock.advance(1000)
        text = self.metrics.render(OPEN).body.decode()
        return [sample for family in newer_families(text) for sample in family.samples]  # type: ignore[no-untyped-call]

    def value(self, name: str, **labels: str) -> float:
        found = [each.value for each in self.samples() if each.name == name and each.labels == labels]
        assert len(found) == 1, (name, labels, found)
        return float(found[0])


def documented() -> dict[str, tuple[str, set[str]]]:
    """Name: type and labels, as the tables of the page have them."""
    page = (ROOT / "docs" / "metrics.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*?) \| .+ \| .+ \|$", page, re.MULTILINE)
    assert len(rows) == len({name for name, *_ in rows})
    return {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}


def served(text: str) -> dict[str, tuple[str, set[str]]]:
    found = {}
    for family in older_families(text):
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        name = family.name + ("_total" if family.type == "counter" else "")
        found[name] = (family.type, labels)
    return found


def test_the_page_names_every_metric_with_its_type_and_its_labels_and_no_other() -> None:
    stage = Stage(a_status("orders", 0, lag_bytes=5, lag_s=1.0))
    assert served(stage.metrics.render("").body.decode()) == documented()


def test_each_metric_is_explained_where_it_is_served() -> None:
    families = list(older_families(Stage(a_status("orders", 0)).metrics.render("").body.decode()))
    assert not [family.name for family in families if not family.documentation]


def test_both_forms_can_be_had() -> None:
    stage = Stage(a_status("orders", 0))
    assert stage.metrics.render(OPEN).media_type.startswith("application/openmetrics-text")
    assert stage.metrics.render(OPEN).body.endswith(b"# EOF\n")
    assert stage.metrics.render("*/*").media_type.startswith("text/plain")


def test_the_worst_lag_is_over_all_and_a_topics_over_its_own_partitions() -> None:
    stage = Stage(
        a_status("orders", 0, lag_bytes=5, lag_s=1.0),
        a_status("orders", 1, lag_bytes=7, lag_s=100.0),
        a_status("cooks", 0, lag_bytes=0, lag_s=0.0),
        a_status("cooks", 1, state="standby", lag_bytes=10**9, lag_s=10.0**6),
        a_status("cooks", 2, state="unknown", lag_bytes=None, lag_s=None),
    )
    assert stage.value("headwater_archive_worst_lag_seconds") == 101  # a second has passed since the look
    assert stage.value("headwater_archive_lag_seconds", topic="orders") == 102
    assert stage.value("headwater_archive_lag_bytes", topic="orders") == 12
    assert stage.value("headwater_archive_lag_seconds", topic="cooks") == 0
    assert stage.value("headwater_archive_unknown_lag_partitions") == 1
    assert stage.value("headwater_partition_archive_lag_bytes", topic="orders", partition="1") == 7


def test_what_is_not_followed_of_the_settings_of_offload_is_counted_where_it_is_archived() -> None:
    late, full = "offload_after is not below retention.ms", "the offload buffer is full"
    stage = Stage(
        replace(a_status("orders", 0), trigger_trouble=late),
        replace(a_status("orders", 1, state="standby"), trigger_trouble=late),
        replace(a_status("cooks", 0), stream_trouble=full),
        replace(a_status("cooks", 1), stream_trouble=full, trigger_trouble=late),
        a_status("cooks", 2),
    )
    assert stage.value("headwater_trigger_not_applied_partitions") == 2
    assert stage.value("headwater_offload_buffer_full_partitions") == 2
    assert stage.buffer.take(300)
    assert stage.value("headwater_offload_buffer_bytes") == 300
    stage.buffer.bytes_max = 2000
    assert stage.value("headwater_offload_buffer_limit_bytes") == 2000


def test_a_lag_that_is_not_known_is_none_and_no_other_partition_hides_it() -> None:
    unknown = [a_status("orders", number, state="unknown", lag_bytes=None, lag_s=None) for number in range(3)]
    names = {each.name for each in Stage(*unknown).samples()}
    assert not names & {"headwater_archive_worst_lag_seconds", "headwater_archive_lag_seconds", "headwater_archive_lag_bytes"}
    stage = Stage(*unknown, a_status("orders", 3, lag_bytes=5, lag_s=1.0), a_status("cooks", 0))
    assert stage.value("headwater_archive_worst_lag_seconds") == 2
    assert stage.value("headwater_topic_unknown_lag_partitions", topic="orders") == 3
    assert stage.value("headwater_topic_unknown_lag_partitions", topic="cooks") == 0


def test_partitions_are_counted_by_state_and_the_stalled_by_reason() -> None:
    failures: dict[TopicPartition, HeadwaterError] = {TopicPartition("orders", 1): CorruptData("a file", 0, "cut")}
    stage = Stage(
        a_status("orders", 0),
        a_status("orders", 1, state="stopped"),
        a_status("orders", 2, state="stopped"),
        a_status("orders", 3, state="behind"),
        a_status("orders", 4, state="needs upgrade"),
        failures=failures,
    )
    assert {each: stage.value("headwater_partitions", state=each) for each in ("archived", "stopped", "due")} == {
        "archived": 1,
        "stopped": 2,
        "due": 0,
    }
    reasons = {each.labels["reason"]: each.value for each in stage.samples() if each.name == "headwater_stalled_partitions" and each.value}
    assert reasons == {"corrupt_data": 1, "other": 1, "behind": 1, "needs_upgrade": 1}


@pytest.mark.parametrize(("error", "counted"), [(DiskFull("no room for tails.json"), 1), (TransientError("a disk hangs"), 0)])
def test_the_log_directories_as_a_whole_count_as_one_partition_that_is_stalled(error: HeadwaterError, counted: int) -> None:
    """As when the data directory's disk is full: nothing else would say so."""
    stage = Stage(a_status("orders", 0), failures={LOG_DIRS: error})
    assert stage.value("headwater_stalled_partitions", reason="disk_full") == counted
    assert stage.value("headwater_stalled_partitions", reason="other") == 0


def test_what_has_gathered_to_become_chunks() -> None:
    stage = Stage()
    share = stage.pool.share(FlushLimits(100, 100), lambda: 0)
    stage.pool.set_gathered(share, 70)
    stage.pool.set_failed(share, is_failed=True)
    assert stage.value("headwater_chunk_buffers") == 1
    assert stage.value("headwater_chunk_buffers_bytes") == 70
    assert stage.value("headwater_chunk_uploads_failed") == 1


def test_what_a_proxy_passes() -> None:
    stage = Stage()
    meter = stage.gateway
    meter.passing(Api.FETCH).requests += 2
    meter.passing(Api.FETCH).response_bytes += 70
    meter.passing(OTHER_API).request_bytes += 5
    meter.added.add(0.003)
    meter.refusals["KAFKA_STORAGE_ERROR"] += 1
    meter.reached(3, failure="refused")
    meter.reached(None, failure="refused")
    assert stage.value("headwater_proxy_requests_total", api="Fetch") == 2
    assert stage.value("headwater_proxy_bytes_total", api="Fetch", direction="out") == 70
    assert stage.value("headwater_proxy_bytes_total", api="other", direction="in") == 5
    assert stage.value("headwater_proxy_added_seconds_count") == 1
    assert stage.value("headwater_proxy_refusals_total", code="KAFKA_STORAGE_ERROR") == 1
    assert stage.value("headwater_proxy_upstream_failures_total", node_id="any") == 1
    assert stage.value("headwater_proxy_unreachable_brokers") == 1
    meter.reached(3)
    assert stage.value("headwater_proxy_unreachable_brokers") == 0
    assert stage.value("headwater_proxy_upstream_failures_total", node_id="3") == 1


def test_calls_requests_and_checks() -> None:
    stage = Stage()
    stage.store.record("get", 0.2, received_bytes=9)
    stage.store.record("get", 200.0)
    stage.gateway.answered(Api.FETCH, 0.003)
    assert stage.value("headwater_store_call_seconds_bucket", operation="get", le="0.25") == 1
    assert stage.value("headwater_store_call_seconds_bucket", operation="get", le="+Inf") == 2
    assert stage.value("headwater_store_call_seconds_count", operation="get") == 2
    assert stage.value("headwater_store_received_bytes_total", operation="get") == 9
    assert stage.value("headwater_gateway_request_seconds_sum", api="fetch") == 0.003
    assert (stage.value("headwater_check_ok", check="store"), stage.value("headwater_check_ok", check="gateway")) == (0, 1)
    assert stage.value("headwater_uploads_waiting") == 7
    assert stage.value("headwater_control_role", role="leader") == 1
    assert stage.value("headwater_control_leaderless_seconds") == 0
    assert stage.value("headwater_control_applied_index") == 17
    assert (
        stage.value(
            "headwater_build_info",
            version="1.2.3",
            python=next(each.labels["python"] for each in stage.samples() if "python" in each.labels),
        )
        == 1
    )


def test_what_read_ahead_and_waits_for_chunks_came_to() -> None:
    stage = Stage()
    stage.counters.ahead, stage.counters.ahead_used, stage.counters.ahead_wasted = 9, 5, 3
    stage.counters.waits.add(0.2)
    stage.counters.waits.add(3.0)
    assert stage.value("headwater_readahead_chunks_total") == 9
    assert stage.value("headwater_readahead_used_chunks_total") == 5
    assert stage.value("headwater_readahead_wasted_chunks_total") == 3
    assert stage.value("headwater_hydration_wait_seconds_bucket", le="0.25") == 1
    assert stage.value("headwater_hydration_wait_seconds_count") == 2
    assert stage.value("headwater_hydration_wait_seconds_sum") == 3.2
    assert stage.value("headwater_cache_bypassed_total") == 1


def test_operations_by_verb_and_outcome_and_what_the_last_scrub_found() -> None:
    stage = Stage()
    running = stage.operations.begin("verify", {}, by="process 7")
    stage.operations.begin("recover", {}, by="process 8").fail(TransientError("down"))
    stage.operations.begin("whatever a process says", {}).end()
    stage.operations.begin("status", {}, is_kept=False).end()
    assert stage.value("headwater_operations_running", verb="verify") == 1
    assert stage.value("headwater_scrub_last_objects", result="examined") == 9
    running.fail(CorruptData("x", 0, "y"), {"examined": 12, "skipped": 0, "damaged": 2, "missing": "no number", "other": 7})
    assert stage.value("headwater_operations_total", verb="verify", outcome="failed") == 1
    assert stage.value("headwater_operations_total", verb="verify", outcome="done") == 1
    assert stage.value("headwater_operations_total", verb="recover", outcome="failed") == 1
    assert stage.value("headwater_operations_total", verb="other", outcome="done") == 1
    assert stage.value("headwater_operations_running", verb="verify") == 0
    found = {each.labels["result"]: each.value for each in stage.samples() if each.name == "headwater_scrub_last_objects"}
    assert found == {"examined": 12, "damaged": 2, "missing": 0, "unexamined": 0}
    stage.operations.begin("scrub", {}).fail(TransientError("nothing was examined"))
    assert stage.value("headwater_scrub_last_objects", result="examined") == 12
    assert stage.value("headwater_scrub_last_end_timestamp_seconds") <= stage.clock.now_ms() / 1000


def scrub_samples(stage: Stage) -> dict[str, float]:
    return {each.labels.get("result", "end"): each.value for each in stage.samples() if each.name.startswith("headwater_scrub_last")}


def test_a_scrub_of_a_part_or_one_that_did_not_end_by_itself_may_raise_damage_alone() -> None:
    stage = Stage()
    stage.operations.begin("scrub", {"selection": None}).fail(
        CorruptData("x", 0, "y"), {"examined": 12, "skipped": 0, "damaged": 2, "missing": 1}
    )
    before = scrub_samples(stage)
    assert (before["damaged"], before["missing"]) == (2, 1)
    nothing = {"examined": 1, "skipped": 0, "damaged": 0, "missing": 0}
    stage.operations.begin("verify", {"selection": "orders:0"}).end(nothing)
    stage.operations.begin("verify", {}).end(nothing | {"examined": 0})
    cancelled = stage.operations.begin("scrub", {})
    stage.operations.cancel(cancelled.id)
    cancelled.fail(TransientError("it was cancelled"), nothing)
    stage.operations.begin("scrub", {}, silence_max_s=1)
    stage.clock.advance(10_000)
    assert scrub_samples(stage) == before
    stage.operations.begin("verify", {"selection": "orders:0"}).end({"examined": 1, "damaged": 3, "missing": 0})
    assert scrub_samples(stage) == before | {"damaged": 3}
    stage.operations.begin("verify", {"selection": None}).end(nothing)
    after = scrub_samples(stage)
    assert after["end"] > before["end"]
    assert (after["examined"], after["damaged"], after["missing"]) == (1, 0, 0)


def test_before_the_first_whole_scrub_only_damage_is_told() -> None:
    stage = Stage(is_scrubbed=False)
    stage.operations.begin("verify", {"selection": "orders"}).end({"examined": 4, "damaged": 0, "missing": 0})
    assert scrub_samples(stage) == {}
    stage.operations.begin("verify", {"selection": "orders"}).end({"examined": 4, "damaged": 0, "missing": 2})
    assert scrub_samples(stage) == {"missing": 2}


def test_operations_that_are_forgotten_stay_counted() -> None:
    stage = Stage()
    stage.clock.advance(int(KEPT_S * 1000) + 1)
    assert not stage.operations.list().operations
    assert stage.value("headwater_operations_total", verb="verify", outcome="done") == 1


def test_an_answer_is_given_again_for_a_second() -> None:
    stage = Stage()
    before = stage.metrics.render("").body
    stage.store.record("get", 0.2)
    assert stage.metrics.render("").body == before
    stage.clock.advance(1000)
    assert stage.metrics.render("").body != before


@pytest.mark.parametrize("accept", ["", "x" * 100_000, "application/openmetrics-text; version=9", *(f"a/{n}" for n in range(20))])
def test_whatever_a_client_accepts_it_gets_something(accept: str) -> None:
    assert Stage().metrics.render(accept).body


def test_versions_that_a_client_names_make_no_more_forms_than_two() -> None:
    stage = Stage()
    kinds = ("application/openmetrics-text", "text/plain")
    versions = ("", "abc", "0.0.1", "0.0.4", "1.0.0", "2.0.0", *(f"1.0.{n}" for n in range(20)))
    found = {stage.metrics.render(f"{kind}; version={version}") for kind in kinds for version in versions}
    assert {each.media_type for each in found} == {
        "text/plain; version=0.0.4; charset=utf-8",
        "application/openmetrics-text; version=1.0.0; charset=utf-8",
    }
    assert len(found) == 2


def test_a_thousand_topics_have_series_and_a_name_with_quotes_breaks_none() -> None:
    stage = Stage(*(a_status(f"t{number:04}", 0, lag_bytes=1, lag_s=float(number)) for number in range(1200)), partitions=False)
    samples = stage.samples()
    assert len([each for each in samples if each.name == "headwater_archive_lag_seconds"]) == 1000
    assert len([each for each in samples if each.name == "headwater_topic_unknown_lag_partitions"]) == 1000
    assert stage.value("headwater_topics_without_series") == 200
    assert stage.value("headwater_archive_worst_lag_seconds") > 1199


def test_labels_are_bounded_by_the_program_and_the_topics() -> None:
    stage = Stage(a_status("orders", 0))
    labels = {(name, value) for each in stage.samples() for name, value in each.labels.items() if name not in ("le", "python", "version")}
    values = {name: {value for label, value in labels if label == name} for name, _ in labels}
    assert values["operation"] == set(OPERATIONS)
    assert values["state"] == set(STATES)
    assert values["api"] == {each.name.lower() for each in Api} | {"Fetch"}
    assert values["topic"] == {"orders"}
    assert values["verb"] == {*VERBS, OTHER}


def test_the_last_drill_and_when_one_passed() -> None:
    stage = Stage()
    assert stage.value("headwater_drill_last_end_timestamp_seconds") == 9
    assert stage.value("headwater_drill_last_pass_timestamp_seconds") == 5
    assert stage.value("headwater_drill_last_compared_bytes") == 70
    outcomes = {each: stage.value("headwater_drill_last_outcome", outcome=each.name.lower()) for each in DrillOutcome}
    assert [each for each, value in outcomes.items() if value] == [DrillOutcome.FAILED]


def test_damage_that_is_known_is_counted_by_object() -> None:
    stage = Stage(a_status("orders", 0))
    assert stage.value("headwater_damaged_objects") == 0
    stage.damaged = {"a-0": {"x", "y"}, "b-0": {"z"}}
    assert stage.value("headwater_damaged_objects") == 3
