"""Limits and delays of a set of mailboxes: each with meaning and range, and a default that suits one process on one disk."""

# No `from __future__ import annotations`: the annotations are read as objects.
from dataclasses import dataclass, fields
from typing import Annotated, Final, NamedTuple, get_args

_MANY: Final = 2**31 - 1


class Bound(NamedTuple):
    """Declares an option: its meaning, the least and the largest value, and the unit if the name does not end with it."""

    meaning: str
    low: float = 1
    high: float = _MANY
    unit: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Counts, sizes and times that limit a set of mailboxes.

    Raises:
        ValueError: a value is out of range, or not a number of its type.
    """

    mailboxes: Annotated[
        int, Bound("Command mailboxes; an aggregate belongs to the one of its slot modulo this number.", 1, 4096, "mailboxes")
    ] = 4
    capacity: Annotated[
        int,
        Bound(
            "Commands that one mailbox holds, from acceptance until they are answered; more are refused with Overloaded.",
            1,
            1_000_000,
            "commands",
        ),
    ] = 16_384
    waiting_bytes_max: Annotated[
        int,
        Bound(
            "Bytes of commands that wait for their handlers, and as many of plain appends after them; more are refused with "
            "Overloaded.",
            18 * 1024 * 1024,
            2**40,
        ),
    ] = 256 * 1024 * 1024
    fast_path_max: Annotated[
        int, Bound("Plain appends in flight on the fast path. The last call accepted may exceed it.", unit="appends")
    ] = 65_536
    aggregates_max: Annotated[
        int,
        Bound(
            "Aggregates in memory; the least recently used are evicted. Those with changes in flight are never evicted and may "
            "exceed it.",
            1,
            100_000_000,
            "aggregates",
        ),
    ] = 100_000
    restores_max: Annotated[
        int,
        Bound(
            "Aggregates that are restored at the same time; of queries that commands are decided on, as many are read.",
            unit="aggregates",
        ),
    ] = 32
    reruns_max: Annotated[
        int, Bound("Reruns of a command after conflicts; then the conflict is its answer.", 1, 1_000_000, "reruns")
    ] = 100
    rerun_pause_first_s: Annotated[
        float,
        Bound(
            "Pause of an aggregate after the second conflict of a command. Doubled each time, and multiplied by 0.5 to 1.5 at "
            "random, so that two writers that conflict do not stay in step.",
            0,
        ),
    ] = 0.001
    rerun_pause_max_s: Annotated[float, Bound("Upper bound of that pause, before the random factor.", 0)] = 0.1
    batch_changes_max: Annotated[int, Bound("Changes in one batch for the store.", unit="changes")] = 4_096
    batch_bytes_max: Annotated[
        int, Bound("Bytes of changes in one batch for the store. A larger change is a batch of its own.")
    ] = 8 * 1024 * 1024
    apply_at_once_max: Annotated[
        int,
        Bound(
            "Changes up to which the outcomes of a batch are applied as they are delivered. Those of a larger batch "
            "are applied in the next turn of the event loop, so that the store can start on the next batch first.",
            unit="changes",
        ),
    ] = 32
    turn_s: Annotated[float, Bound("Work before the event loop gets its turn. One handler may exceed it.", 0)] = 0.001
    slow_handler_s: Annotated[float, Bound("A handler that blocks for longer is reported and counted.", 0)] = 0.050
    backoff_first_s: Annotated[float, Bound("Delay before the first retry of a failed operation; doubled each time.", 0)] = 0.05
    backoff_max_s: Annotated[float, Bound("Upper bound of that delay.", 0)] = 5.0

    def __post_init__(self) -> None:
        for field in fields(self):
            kind, bound = get_args(field.type)
            value, allowed = getattr(self, field.name), (int, float) if kind is float else int
            if not isinstance(value, allowed) or isinstance(value, bool) or not bound.low <= value <= bound.high:
                raise ValueError(f"{field.name} must be a number from {bound.low} to {bound.high}, not {value!r}")
