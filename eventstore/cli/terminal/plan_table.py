"""Shows what moves where, what it costs, and how far it is."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Final

from eventstore.cli.terminal.output import print_line, print_table
from eventstore.fields import counted, size_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventstore_cluster.nodes.moving.plans import ClusterSurvey
    from eventstore_cluster.nodes.moving.progress import Copy, UnderWay
    from eventstore_cluster.nodes.placing.node_rows import NodeRow
    from eventstore_cluster.nodes.placing.plan import PlacementChange, PlacementPlan

_UNITS: Final = {"": 1, "k": 1_000, "K": 1_000, "M": 1_000_000, "G": 1_000_000_000}
_RATE_GUESSED: Final = 100_000_000
_ROWS_MAX: Final = 60
_BAR: Final = 16
"""Characters."""


def sized(text: str) -> int:
    """Returns the bytes that a text such as 100MB or 100MB/s says. Raises InvalidArgument."""
    from eventstore.errors import InvalidArgument

    found = re.fullmatch(r"([0-9]{1,19}) ?([kKMG]?)B?(/s)?", text.strip())
    if found is None:
        why = f"{text!r:.80} is not a rate, such as 100MB (kB, MB or GB a second), or none for no limit"
        raise InvalidArgument(why, field="max-rate", value=text)
    return int(found[1]) * _UNITS[found[2]]


def print_plan(plan: PlacementPlan, found: ClusterSurvey) -> None:
    """Prints a plan for people, after what it leaves alone."""
    from eventstore_cluster.nodes.placing.notes import notes

    busy = [each for each in found.fleet.shards.values() if each.busy]
    for each in busy[:_ROWS_MAX]:
        print_line(f"Shard {each.number} is left alone: it {each.why_busy}.")
    if len(busy) > _ROWS_MAX:
        print_line(f"… and {len(busy) - _ROWS_MAX} more shards are left alone.")
    if not plan.changes:
        print_line(f"Nothing is to be moved between {', '.join(name for name, *_ in plan.nodes)}.")
        return
    print_table(None, ("shard", "replica", "leader", "copies", "why"), [_cells(each) for each in plan.changes[:_ROWS_MAX]])
    if len(plan.changes) > _ROWS_MAX:
        print_line(f"… and {len(plan.changes) - _ROWS_MAX} more shards; --json shows all.")
    print_line("")
    nodes = [(name, _change(replicas, after), _change(led, led_after)) for name, replicas, after, led, led_after in plan.nodes]
    print_table(None, ("node", "replicas", "leaders"), nodes)
    print_line("")
    limits = found.limits
    rate = (limits.rate or _RATE_GUESSED) * limits.at_once
    assumed = "" if limits.rate else ", if each is sent 100 MB/s"
    seconds = f"about {max(plan.seconds(rate), 1):,.0f} s{assumed}" if plan.size else "no time"
    print_line(f"Copies {size_text(plan.size)} in {seconds}, {limits.at_once} shards at once.")
    if plan.pauses:
        print_line(f"Writers to {counted(plan.pauses, 'shard')} wait for a hand-over, about 0.25 s each if nodes are not busy.")
    for note in notes(found.fleet, plan):
        print_line(note)


def _cells(change: PlacementChange) -> tuple[object, ...]:
    moves = [f"{source} → {target}" for source, target in zip(change.lost, change.gained, strict=False)]
    moves += [f"+ {name}" for name in change.gained[len(change.lost) :]]
    moves += [f"− {name}" for name in change.lost[len(change.gained) :]]
    leader = None if change.leader is None else f"to {change.leader}"
    return change.shard, ", ".join(moves) or None, leader, size_text(change.size) if change.size else None, change.why


def _change(before: int, after: int) -> str:
    return str(before) if before == after else f"{before} → {after}"


def print_nodes(rows: Sequence[NodeRow]) -> None:
    """Prints what each node keeps, and after that whose replicas cannot run."""
    heads = ("node", "now", "address", "zone", "replicas", "leaders", "keeps", "free")
    print_table(None, heads, [_node_cells(row) for row in rows])
    for row in rows:
        if row.failing:
            print_line(f"On {row.node} the replicas of shards {', '.join(map(str, row.failing))} cannot run: see its /health.")


def _node_cells(row: NodeRow) -> tuple[object, ...]:
    free = None if row.free_bytes is None else size_text(row.free_bytes)
    return row.node, row.state, row.address or None, row.zone or None, row.replicas, row.leaders, size_text(row.size), free


class UnderWayTable:
    """Prints what is under way; in a terminal with a bar for each copy."""

    def __init__(self) -> None:
        self._shown: list[tuple[object, ...]] | None = None

    def show(self, found: Sequence[UnderWay]) -> None:
        """Prints the table, unless it is what was printed last."""
        bars = sys.stdout.isatty()
        rows: list[tuple[object, ...]] = [
            (each.shard, " ".join(each.before), _wanted(each), each.leader, each.does, _copied(each, bars), each.by or None)
            for each in found
        ]
        if rows == self._shown:
            return
        self._shown = rows
        if rows:
            print_table(None, ("shard", "kept by", "wanted", "led by", "now", "copied", "asked by"), rows)
        else:
            print("Nothing is under way.")
        sys.stdout.flush()  # a file or a pipe may be watched


def _wanted(each: UnderWay) -> str:
    if each.split:
        return f"split, into {', '.join(map(str, (each.shard, *each.split)))}"
    return " ".join(each.wanted)


def _copied(each: UnderWay, bars: bool) -> str | None:
    return ", ".join(filter(None, (copied_text(copy, bar=bars) for copy in each.copies))) or None


def copied_text(copy: Copy, *, bar: bool) -> str | None:
    """Returns how much of a copy is there; None if that is not known."""
    if copy.size is None or copy.lacks is None:
        return None
    done = max(copy.size - copy.lacks, 0)
    said = f"{size_text(done)} of {size_text(copy.size)}"
    if not copy.size:
        return said
    full = done * _BAR // copy.size
    drawn = f"{'█' * full}{'░' * (_BAR - full)} " if bar else ""
    return f"{drawn}{done * 100 // copy.size} %, {said}"
