"""Alerts, their runbook and tests, and the dashboard name what there is."""

import ctypes
import json
import re
import shutil
import subprocess
import sys
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from headwater.admin.metrics import REASONS, STATES
from tests.headwater.admin.contrib import ALERTS, ALERTS_TEST, alerts, dashboard, metrics_in, panel_expressions
from tests.headwater.admin.statuses import a_status
from tests.headwater.admin.test_metrics import Stage, documented
from tests.test_layers import ROOT

RUNBOOK = ROOT / "docs" / "runbook.md"


def names() -> set[str]:
    """Of all series that may be scraped."""
    stage = Stage(a_status("orders", 0, lag_bytes=5, lag_s=1.0))
    return {each.name for each in stage.samples()}


def test_what_alerts_and_panels_select_is_served() -> None:
    used = set().union(*(metrics_in(each["expr"]) for each in alerts().values()), *map(metrics_in, panel_expressions()))
    assert len(used) > 40
    assert used <= names()


def test_every_metric_is_on_the_dashboard_or_deliberately_not() -> None:
    shown = set().union(*map(metrics_in, panel_expressions()))
    families = {re.sub("_(bucket|count|sum)$", "", each) for each in shown}
    assert documented().keys() - families == {
        "headwater_build_info",  # a variable's
        "headwater_topic_unknown_lag_partitions",
        "headwater_partition_archive_lag_seconds",  # by option
        "headwater_partition_archive_lag_bytes",
        "headwater_topics_without_series",
        "headwater_chunk_buffers",  # of topics in one layout with streaming offload
        "headwater_chunk_buffers_bytes",
        "headwater_chunk_uploads_failed",
        "headwater_control_role",
        "headwater_gateway_unread_bytes",  # of clients that do not read; bounded
        "headwater_gateway_unread_responses_dropped_total",
        "headwater_gateway_idle_connections_closed_total",
        "headwater_gateway_malformed_requests_total",  # of scanners and health checks
        "headwater_proxy_bytes_total",  # as its requests do
        "headwater_proxy_archived_bytes_total",
        "headwater_proxy_upstream_failures_total",  # the panel has the brokers that are not reached now
        "headwater_cluster_snapshots_total",  # of a cluster in which nothing changes there are none
        "headwater_cluster_snapshot_failures_total",
        "headwater_cluster_snapshot_number",
        "headwater_cluster_unknown_records",
        "headwater_drill_last_end_timestamp_seconds",  # of the last one; the panel has the last that passed
        "headwater_drill_last_outcome",
        "headwater_drill_last_compared_bytes",
        "process_virtual_memory_bytes",
        "process_start_time_seconds",
        "process_max_fds",
    }


def test_labels_that_alerts_and_panels_select_by_have_such_values() -> None:
    text = ALERTS.read_text("utf-8") + " ".join(panel_expressions())
    selected = {name: set(re.findall(rf'\b{name}!?="(\w+)"', text)) for name in ("state", "reason")}
    assert selected["state"]
    assert selected["state"] <= set(STATES)
    assert selected["reason"] <= REASONS.keys()


def test_every_alert_has_a_section_of_the_runbook_and_the_runbook_no_other() -> None:
    sections = re.findall(r"^## (Headwater\w+)$", RUNBOOK.read_text("utf-8"), re.MULTILINE)
    assert sections == list(alerts())
    for name, alert in alerts().items():
        assert alert["annotations"]["runbook_url"] == f"docs/runbook.md#{name.lower()}"
        assert set(alert["annotations"]) == {"summary", "description", "runbook_url"}
        assert alert["labels"]["severity"] in ("critical", "warning")


def test_every_alert_has_a_unit_test_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    cases = [case for test in yaml.safe_load(ALERTS_TEST.read_text("utf-8"))["tests"] for case in test["promql_expr_test"]]
    firing = {re.findall(r'alertname="(\w+)"', sample["labels"])[0] for case in cases for sample in case["exp_samples"]}
    assert firing == set(alerts())


def test_the_page_of_metrics_names_every_alert() -> None:
    named = set(re.findall(r"\bHeadwater[A-Z]\w+", (ROOT / "docs" / "metrics.md").read_text("utf-8")))
    assert named == set(alerts())


def test_the_dashboard_is_one_by_grafanas_own_models() -> None:
    """What a model does not know it leaves out; what it knows otherwise it refuses."""
    register_default_plugins()
    known = json.loads(json.dumps(Dashboard.from_json(dashboard()), cls=JSONEncoder))
    assert list(left_out(dashboard(), known, "dashboard")) == []


def left_out(ours: Any, known: Any, where: str) -> "list[str]":
    if isinstance(ours, dict) and isinstance(known, dict):
        return [found for key, each in ours.items() for found in left_out(each, known.get(key), f"{where}.{key}")]
    if isinstance(ours, list) and isinstance(known, list) and len(ours) == len(known):
        return [found for at, each in enumerate(ours) for found in left_out(each, known[at], f"{where}[{at}]")]
    return [] if ours == known else [f"{where}: {ours}"]


def test_panels_lie_in_rows_and_none_on_another() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + dx, at["y"] + dy) for dx in range(at["w"]) for dy in range(at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in dashboard()["panels"]}) == len(dashboard()["panels"])
    rows = [panel["title"] for panel in dashboard()["panels"] if panel["type"] == "row"]
    assert rows == ["Is everything archived?", "The store", "Reading", "Kafka clients", "The proxy", "The agent"]


PR_SET_MDWE = 65  # Linux 6.3: what systemd uses for MemoryDenyWriteExecute=yes, which children inherit
COMPILE = "import numba; assert numba.njit(lambda number: number + 1)(1) == 2"


@pytest.mark.parametrize("command", [[sys.executable, "-c", COMPILE], ["java", "-Xmx64m", "-version"]], ids=["numba", "java"])
def test_what_compiles_runs_under_the_unit(command: list[str]) -> None:
    """A drill starts a broker (drill.kafka_home), and scans compile."""
    unit = (ROOT / "contrib" / "systemd" / "headwater.service").read_text("utf-8")
    settings = dict(line.split("=", 1) for line in unit.splitlines() if re.match(r"\w+=", line))
    assert settings["Type"] == "notify"
    if shutil.which(command[0]) is None:
        pytest.skip(f"no {command[0]} here")
    is_denied = settings.get("MemoryDenyWriteExecute") == "yes"

    def confine() -> None:
        if is_denied:
            ctypes.CDLL(None).prctl(PR_SET_MDWE, 1, 0, 0, 0)

    ran = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=confine)
    assert ran.returncode == 0, ran.stderr
