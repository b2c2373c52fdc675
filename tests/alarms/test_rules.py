"""Rules: how they are written, and what is refused."""

from __future__ import annotations

import pytest

from eventstore.alarms.alarm import Alarm
from eventstore.alarms.built_in_rules import BUILT_IN
from eventstore.alarms.figure import value_text
from eventstore.alarms.rule import RULES_MAX, Rule, parse_rule, parse_rules
from eventstore.errors import InvalidArgument
from eventstore.metrics import labels_of
from eventstore.server.alarms.known_figures import KNOWN_FIGURES, OF_CLUSTERS
from eventstore.server.prometheus import figure_name
from eventstore_cluster.node_alarms import NODE_FIGURES
from eventstore_cluster.replication.replica_metrics import REPLICA_LABELLED, REPLICA_METRICS


def test_a_rule_says_figure_labels_limit_and_times() -> None:
    found = parse_rule("billing_behind: group_backlog{topic=orders, group=billing} > 10000 for 60 until 1000")
    labels = (("group", "billing"), ("topic", "orders"))
    text = "group_backlog{topic=orders, group=billing} > 10000 for 60 until 1000"
    assert found == Rule("billing_behind", "group_backlog", labels, None, ">", 10_000.0, 60.0, 1_000.0, text)
    assert parse_rule("a: b / c < 0.5").divisor == "c"
    assert parse_rule("a: b < c for 1.5").limit == "c"
    assert parse_rule("a: b < c for 1.5").figures == {"b", "c"}


def test_rules_replace_and_remove_the_built_in_ones() -> None:
    text = "group_behind: group_backlog > 5 # few\nslow_syncs: off; mine: batches > 3 for 60\n"
    found = parse_rules(text, BUILT_IN, KNOWN_FIGURES)
    assert found["group_behind"].limit == 5
    assert "slow_syncs" not in found
    assert list(found)[-1] == "mine"
    assert len(found) == len(BUILT_IN)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x", "expected is NAME"),
        ("X: batches > 3", "expected is NAME"),
        ("x: batches >= 3", "expected is NAME"),
        ("x: batches > 3 for", "expected is NAME"),
        ("x: batches > three hours", "expected is NAME"),
        ("x: batchs > 3", "did you mean batches"),
        ("x: batches > 3 for 9999999", "allowed are 0 to"),
        ("x: batches > 3 until 4", "would end at once"),
        ("x: disk_free_bytes < 3 until 2", "would end at once"),
        ("x: batches > events until 4", "a limit that is a number"),
        ("x: batches{group} > 3", "labels are written as"),
        ("x: batches > 3\nx: batches > 4", "another rule x"),
        ("x: off", "no built-in rule has this name"),
        ("x: group_backlog{grp=a} > 3", "there is no label grp; group_backlog has group, topic"),
        ("x: disk_free_bytes{shard=1} > 3", "there is no label shard; disk_free_bytes has no labels"),
        ("x\x1b[2J: batches > 3", r"x\\x1b\[2J"),
        ("\n".join(f"x{number}: batches > 3" for number in range(RULES_MAX)), "allowed are 100"),
    ],
)
def test_what_is_no_rule_is_refused_by_name(text: str, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why) as caught:
        parse_rules(text, BUILT_IN, KNOWN_FIGURES)
    assert caught.value.fields["field"] == "alarm_rules"


def test_every_figure_of_the_built_in_rules_exists() -> None:
    assert {name for rule in BUILT_IN.values() for name in rule.figures} <= KNOWN_FIGURES.keys()


def test_the_figures_of_clusters_are_those_that_clusters_have() -> None:
    declared = (*REPLICA_METRICS, *REPLICA_LABELLED, *NODE_FIGURES)
    assert {figure_name(each.name): labels_of(each) for each in declared if each.kind != "text"} == OF_CLUSTERS


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("disk_free_bytes", 65e9, "65.0 GB"), ("disk_free_bytes", 12, "12 B"), ("lag_seconds", 3.25, "3.25 s"),
        ("group_backlog", 12_000, "12,000"), ("events", 65_432_100_000, "65,432,100,000"), ("", 0.0512345678, "0.0512346"),
        ("events", 999_999.7, "1,000,000"), ("lag_seconds", 0.00005, "0.00005 s"), ("lag_seconds", 0, "0 s"),
    ],
)  # fmt: skip
def test_the_value_of_a_figure_is_readable(name: str, value: float, text: str) -> None:
    assert value_text(name, value) == text


def test_the_text_of_an_alarm_has_units() -> None:
    alarm = Alarm(parse_rule("small_disk: disk_free_bytes < 100000000000"), (), value=65e9, limit=100e9)
    assert alarm.text == "small_disk: disk_free_bytes is 65.0 GB, < 100.0 GB"
