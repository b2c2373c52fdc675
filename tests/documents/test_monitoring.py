"""docs/monitoring: rules and dashboard name metrics that there are."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import pytest

from eventstore.alarms.built_in_rules import BUILT_IN
from eventstore.server.prometheus import exported_name
from tests.documents.pages import ROOT

sys.path.insert(0, str(ROOT / ".ci"))
from reference_page import DECLARED

MONITORING = ROOT / "docs" / "monitoring"
NAMED = [(exported_name(each.name) + ("_total" if each.kind == "counter" else ""), each) for each in DECLARED]
"""With labels and without, if it may have them."""
EXPORTED = {name: each for name, each in NAMED if each.kind != "text"}


def names_in(expression: str) -> set[str]:
    """Returns the metrics that an expression of PromQL is about."""
    return set(re.findall(r"\beventstore_\w+", expression))


def check(expression: str) -> None:
    names = names_in(expression)
    assert names <= EXPORTED.keys(), names - EXPORTED.keys()
    for name in names:  # a counter is only good for its increase, a gauge has none
        counts = re.search(rf"\b(rate|increase)\({name}\[", expression) is not None
        assert counts == (EXPORTED[name].kind == "counter"), expression
    assert expression.count("(") == expression.count(")")


def test_every_metric_of_the_rules_exists_and_every_built_in_alarm_has_one() -> None:
    yaml = pytest.importorskip("yaml")
    found = yaml.safe_load((MONITORING / "prometheus-rules.yml").read_text(encoding="utf-8"))
    rules = [rule for group in found["groups"] for rule in group["rules"]]
    for rule in rules:
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "0s"))
        assert rule["labels"]["severity"] in ("warning", "critical")
        if rule["alert"] != "EventstoreDown":
            assert names_in(rule["expr"])
        check(rule["expr"])
    names = [rule["alert"] for rule in rules]
    assert len(set(names)) == len(names)
    assert {f"Eventstore{''.join(part.capitalize() for part in name.split('_'))}" for name in BUILT_IN} < set(names)


def test_there_are_rules_about_replicas_that_are_behind_and_leaders_that_change_and_the_page_says_what_to_do() -> None:
    yaml = pytest.importorskip("yaml")
    found = yaml.safe_load((MONITORING / "prometheus-rules.yml").read_text(encoding="utf-8"))
    about = {rule["alert"]: names_in(rule["expr"]) for group in found["groups"] for rule in group["rules"]}
    page = (ROOT / "docs" / "OPERATIONS.md").read_text(encoding="utf-8")
    assert about["EventstoreMovesPaused"] == {"eventstore_moves_paused"}
    for alert, metric in (
        ("EventstoreReplicaMissing", "eventstore_replicas_in_sync"),
        ("EventstoreReplicaBehind", "eventstore_replica_lag_seconds"),
        ("EventstoreLeaderChanges", "eventstore_replica_epoch"),
        ("EventstoreShardUnserved", "eventstore_shard_unserved"),
    ):
        assert metric in about[alert]
        assert f"`{alert}`" in page


def test_every_metric_and_label_of_the_dashboard_exists() -> None:
    found: dict[str, Any] = json.loads((MONITORING / "grafana-dashboard.json").read_text(encoding="utf-8"))
    panels = found["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) >= 15
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len(panels)
    for panel in panels:
        for target in panel["targets"]:
            check(target["expr"])
            names = names_in(target["expr"])
            labels = {label for name, each in NAMED if name in names for label in getattr(each, "labels", ())}
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= {*labels, "instance", "shard"}


def test_a_name_that_no_metric_has_would_be_found() -> None:
    for wrong in (
        "eventstore_evnts_total",
        "rate(eventstore_events[1m])",
        "eventstore_events_total > 3",
        "rate(eventstore_connections[1m])",
    ):
        with pytest.raises(AssertionError):
            check(wrong)


def test_operations_refers_to_the_files() -> None:
    page = (ROOT / "docs" / "OPERATIONS.md").read_text(encoding="utf-8")
    for file in sorted(MONITORING.iterdir()):
        assert f"monitoring/{file.name}" in page
