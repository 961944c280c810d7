"""What contrib/ has for Prometheus and Grafana."""

import json
import re
from functools import cache
from typing import Any

import yaml

from tests.test_layers import ROOT

ALERTS = ROOT / "contrib" / "prometheus" / "alerts.yaml"
ALERTS_TEST = ROOT / "contrib" / "prometheus" / "alerts_test.yaml"
DASHBOARD = ROOT / "contrib" / "grafana" / "headwater.json"


@cache
def alerts() -> dict[str, dict[str, Any]]:
    """The rules, by name."""
    [group] = yaml.safe_load(ALERTS.read_text("utf-8"))["groups"]
    found = {each["alert"]: each for each in group["rules"]}
    assert len(found) == len(group["rules"])
    return found


@cache
def dashboard() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(DASHBOARD.read_text("utf-8"))
    return document


def panel_expressions() -> list[str]:
    """Of all panels, as Prometheus gets them."""
    written = [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", [])]
    return [each.replace("$instance", ".*").replace("$__rate_interval", "5m") for each in written]


def metrics_in(expression: str) -> set[str]:
    """The names of what it selects: of labels, functions and strings there are none that look so."""
    return set(re.findall(r"\b(?:headwater|process)_\w+", expression))
