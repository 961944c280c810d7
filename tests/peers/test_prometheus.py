"""The alerts and the dashboard, by Prometheus' own tool."""

import json
from pathlib import Path

import pytest

from tests.headwater.admin.contrib import ALERTS, ALERTS_TEST, alerts, panel_expressions
from tests.peers.prometheus import promtool

pytestmark = pytest.mark.peer


def test_the_alerts_and_their_unit_tests_are_accepted() -> None:
    assert f"{len(alerts())} rules found" in promtool("check", "rules", ALERTS)
    assert "SUCCESS" in promtool("test", "rules", ALERTS_TEST)


def test_each_expression_of_the_dashboard_is_accepted(tmp_path: Path) -> None:
    rules = [{"record": f"panel:{at}", "expr": each} for at, each in enumerate(panel_expressions())]
    file = tmp_path / "panels.yaml"
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", file)
