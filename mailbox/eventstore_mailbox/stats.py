"""Counters and gauges of a set of mailboxes, for monitoring."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from typing import NamedTuple

from eventstore_mailbox.core.machine import Machine
from eventstore_mailbox.core.state import CommandMailbox


class MailboxStats(NamedTuple):
    """The figures of one mailbox. A tuple: a server has many mailboxes and makes these for each `stats`, in a third of the time
    of a frozen dataclass.

    Attributes:
        number: of the mailbox, from 0.
        max_offset: commands accepted so far.
        consume_offset: commands that the processor has seen.
        depth: commands that are not answered yet.
        unpersisted: changes that are not being persisted yet.
        handled: commands that were handled.
        wait_s: the sum over handled commands of the time from acceptance to the handler.
        handle_s: the sum over handled commands of the time in the handler, without the waits of async handlers.
        conflicts: changes that the store refused because another writer was first.
        creation_races: conflicts of commands that would have created their aggregate.
        reruns: commands to be handled again because they conflicted or followed a command that did.
        slow: handlers that blocked too long.
    """

    number: int
    max_offset: int
    consume_offset: int
    depth: int
    unpersisted: int
    handled: int
    wait_s: float
    handle_s: float
    conflicts: int
    creation_races: int
    reruns: int
    slow: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MailboxesStats:
    """The figures of a set of mailboxes.

    Attributes:
        hottest: aggregates with the most conflicts.
        busiest: aggregates with the most commands, from a sample of one in 64.
        fast_path_total: plain appends that took the fast path.
        fast_path_depth: plain appends that are in flight on the fast path.
    """

    mailboxes: tuple[MailboxStats, ...]
    depth: int
    fast_path_depth: int
    fast_path_total: int
    aggregates: int
    evicted: int
    restored: int
    restoring: int
    restores_waiting: int
    persist_failures: int
    restore_failures: int
    in_flight_duplicates: int
    hottest: tuple[tuple[str, int], ...]
    busiest: tuple[tuple[str, int], ...]


def stats_of(machine: Machine) -> MailboxesStats:
    processor, fast_path = machine.processor, machine.fast_path
    restores = processor.restores
    return MailboxesStats(
        mailboxes=tuple(map(_of_mailbox, machine.mailboxes)),
        depth=machine.depth,
        fast_path_depth=fast_path.depth,
        fast_path_total=fast_path.total,
        aggregates=machine.lanes.resident,
        evicted=machine.lanes.evicted,
        restored=restores.done,
        restoring=restores.running,
        restores_waiting=restores.waiting,
        persist_failures=machine.persist_failures + fast_path.failures,
        restore_failures=restores.failures,
        in_flight_duplicates=machine.duplicates.total,
        hottest=tuple(machine.outcomes.most_conflicts.top()),
        busiest=tuple(processor.busiest.top()),
    )


def joined(sets: Sequence[MailboxesStats]) -> MailboxesStats:
    """Returns the figures of several sets of mailboxes added up, with the mailboxes of all sets."""

    def total(name: str) -> int:
        return sum(getattr(each, name) for each in sets)

    def top(name: str) -> tuple[tuple[str, int], ...]:
        ranked: Iterator[tuple[str, int]] = chain.from_iterable(getattr(each, name) for each in sets)
        return tuple(sorted(ranked, key=lambda one: one[1], reverse=True))

    counts = {each.name: total(each.name) for each in fields(MailboxesStats) if each.type == "int"}
    mailboxes = tuple(chain.from_iterable(each.mailboxes for each in sets))
    return MailboxesStats(mailboxes=mailboxes, hottest=top("hottest"), busiest=top("busiest"), **counts)


def _of_mailbox(mailbox: CommandMailbox) -> MailboxStats:
    return MailboxStats(
        number=mailbox.index,
        max_offset=mailbox.max_offset,
        consume_offset=mailbox.consume_offset,
        depth=mailbox.depth,
        unpersisted=mailbox.events.waiting,
        handled=mailbox.handled,
        wait_s=mailbox.wait_s,
        handle_s=mailbox.handle_s,
        conflicts=mailbox.conflicts,
        creation_races=mailbox.creation_races,
        reruns=mailbox.reruns,
        slow=mailbox.slow,
    )
