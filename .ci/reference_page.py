"""Writes docs/REFERENCE.md from the declarations: settings, metrics, alarms, errors."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "mailbox"))

from eventstore import errors
from eventstore.alarms.alarm_metrics import ALARM, NODE_ALARM
from eventstore.alarms.built_in_rules import BUILT_IN
from eventstore.metrics import LabelledMetric, Metric, labels_of
from eventstore.server.metric_subjects import LABELLED, METRICS_BY_SUBJECT
from eventstore.server.projection_watch import PROJECTION_LABELLED, PROJECTION_METRICS, PROJECTION_WAITING
from eventstore.server.prometheus import exported_name, figure_name
from eventstore.settings.server import ServerSettings
from eventstore.settings.setting_declaration import DeclaredSetting, settings_by_group
from eventstore_cluster.node_alarms import NODE_FIGURES
from eventstore_cluster.node_reports import SHARD_METRICS
from eventstore_cluster.nodes.leader_changes import LEADER_CHANGES
from eventstore_cluster.replication.replica_metrics import REPLICA_LABELLED, REPLICA_METRICS

_HEAD = """\
# Reference

All settings, metrics, built-in alarms and errors. Generated from their declarations by `make generate`;
how to use them: [OPERATIONS](OPERATIONS.md).

## Settings

Of `eventstore serve` and `eventstore work`; [where a value comes from](OPERATIONS.md#settings). The name is the key in the TOML
file and in `--set`. `eventstore settings` lists them with the values they have, and where each comes from.
"""
_METRICS = """\
## Metrics

`/metrics` exports them. `eventstore stats` and `/health` show the same values under the name without `eventstore_` and
`_total`, times in microseconds instead of seconds, and some texts besides. *Access* is there with
identities only, *TLS* with a certificate.
"""
_LABELLED_METRICS = """\
### Reactions, queues, groups and alarms

Of each alarm and reaction; of each queue and group, once there are topics. Above 1,000 queues they are added up per topic
(`queue="all"`), above 1,000 topics the rest of them as `topic=":others"`.
"""
_REPLICA_METRICS = """\
### Replicas

Of the leader of a shard that has [replicas](CLUSTER.md#several-machines); the last one of each node.
"""
_NODE_METRICS = """\
### Shards

Of the shards that a [node](CLUSTER.md) runs, beside what each of them says, which has the label `shard` there.
"""
_PROJECTION_METRICS = """\
### Projections

Of a projector, on the address that `eventstore project --http` names. With several projections (`--all`), each figure has the
label `projection`, and there is `eventstore_projection_waiting`.
"""
_LABELLED = (*LABELLED, ALARM)
_OF_NODES = (*SHARD_METRICS, *NODE_FIGURES, NODE_ALARM)
DECLARED = (
    *chain.from_iterable(METRICS_BY_SUBJECT.values()),
    *_LABELLED,
    *REPLICA_METRICS,
    *REPLICA_LABELLED,
    LEADER_CHANGES,
    *_OF_NODES,
    *PROJECTION_LABELLED,
    *PROJECTION_METRICS,
)
"""All metrics that there are."""
_ALARMS = """\
## Built-in alarms

The rules that there are without any configuration ([what a rule is](OPERATIONS.md#alarms)); `NAME: off` in `alarm_rules`
removes one. Each is evaluated for every subject that has its figure, and `eventstore alarms list` shows its state.
"""
_ERRORS = """\
## Errors

The codes are those of the [protocol](PROTOCOL.md); a code is never used again for another error. If an error is *retriable*,
the same call may succeed later. What an operator does about the serious ones:
[OPERATIONS](OPERATIONS.md#when-something-goes-wrong).
"""


def reference_page() -> str:
    """The page as it must be."""
    return "\n".join([_HEAD, *_settings(), *_metrics(), *_projection_metrics(), *_alarms(), _ERRORS, *_errors(), ""])


def _settings() -> Iterator[str]:
    columns = ("name", "flag", "variable", "type", "range", "default", "unit", "meaning")
    for group, members in settings_by_group(ServerSettings).items():
        yield f"### {group}\n"
        yield from _table(columns, map(_setting_row, members))


def _metrics() -> Iterator[str]:
    yield _METRICS
    for subject, declared in METRICS_BY_SUBJECT.items():
        yield f"### {subject}\n"
        yield from _metric_table(declared)
    yield _LABELLED_METRICS
    yield from _table(
        ("metric", "kind", "labels", "what"),
        ((_exported(each), each.kind, ", ".join(each.labels), each.help) for each in _LABELLED),
    )
    yield _REPLICA_METRICS
    yield from _metric_table(REPLICA_METRICS)
    yield from _table(
        ("metric", "kind", "labels", "what"),
        ((_exported(each), each.kind, ", ".join(each.labels), each.help) for each in (*REPLICA_LABELLED, LEADER_CHANGES)),
    )
    yield _NODE_METRICS
    yield from _table(
        ("metric", "kind", "labels", "what"),
        (
            (_exported(each), each.kind, ", ".join(each.labels), each.help)
            for each in (*SHARD_METRICS, *NODE_FIGURES, NODE_ALARM)
        ),
    )


def _projection_metrics() -> Iterator[str]:
    yield _PROJECTION_METRICS
    yield from _metric_table((*PROJECTION_METRICS, PROJECTION_WAITING))


def _alarms() -> Iterator[str]:
    declared = {figure_name(each.name): each for each in DECLARED}
    yield _ALARMS
    yield from _table(
        ("alarm", "raised when", "of each", "the figure"),
        (
            (f"`{each.name}`", f"`{each.text}`", ", ".join(labels_of(declared[each.figure])), declared[each.figure].help)
            for each in BUILT_IN.values()
        ),
    )


def _metric_table(declared: Iterable[Metric[Any] | LabelledMetric]) -> Iterator[str]:
    yield from _table(
        ("metric", "kind", "what", "look at it when"),
        (
            (_exported(each), each.kind, each.help, each.watch if isinstance(each, Metric) else "")
            for each in declared
            if each.kind != "text"
        ),
    )


def _exported(metric: Metric[Any] | LabelledMetric) -> str:
    return f"`{exported_name(metric.name)}{'_total' if metric.kind == 'counter' else ''}`"


def _setting_row(each: DeclaredSetting) -> tuple[str, ...]:
    flag = each.flag.replace("/", "`, `")
    return (
        f"`{each.name}`",
        f"`{flag}`",
        f"`{each.variable}`",
        each.type_text,
        each.range_text,
        f"`{each.default_text}`",
        each.unit,
        each.setting.meaning,
    )


def _errors() -> Iterator[str]:
    found = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.EventStoreError)]
    rows = sorted((kind.code, kind.__name__, kind.retriable, kind.__doc__ or "") for kind in found)
    yield from _table(
        ("error", "code", "retriable", "meaning"),
        ((f"`{name}`", str(code), "yes" if retriable else "", _first_paragraph(text)) for code, name, retriable, text in rows),
    )


def _first_paragraph(text: str) -> str:
    return " ".join(text.split("\n\n")[0].split())


def _table(columns: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield f"|{' --- |' * len(columns)}"
    yield from (f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows)
    yield ""
