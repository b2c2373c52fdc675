"""What is told of a set of mailboxes to whoever watches it."""

from __future__ import annotations

from dataclasses import dataclass

from eventstore_mailbox.command_mailbox import CommandMailbox
from eventstore_mailbox.machine import Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class MailboxFigures:
    """wait_s and handle_s are sums over `handled` commands: from acceptance to the handler, and in the handler (without what
    an async handler waits for). `slow`: handlers that blocked too long. `reruns`: commands that were set back by a conflict,
    or were behind one."""

    index: int
    max_offset: int
    consume_offset: int
    depth: int
    unpersisted: int
    handled: int
    wait_s: float
    handle_s: float
    conflicts: int
    reruns: int
    slow: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """hottest   aggregates with the most conflicts
    busiest    aggregates with the most commands, from a sample of one in 64
    passed     plain appends that went past the mailboxes; `passing` are on their way
    """

    mailboxes: tuple[MailboxFigures, ...]
    depth: int
    passing: int
    passed: int
    aggregates: int
    evicted: int
    restored: int
    restoring: int
    restores_waiting: int
    persist_failures: int
    restore_failures: int
    publish_failures: int
    repeats: int
    hottest: tuple[tuple[str, int], ...]
    busiest: tuple[tuple[str, int], ...]


def figures_of(machine: Machine) -> Figures:
    processor, passage, publisher = machine.processor, machine.passage, machine.publisher
    restores = processor.restores
    return Figures(
        mailboxes=tuple(map(_of_mailbox, machine.mailboxes)),
        depth=machine.depth,
        passing=passage.depth,
        passed=passage.passed,
        aggregates=machine.lanes.resident,
        evicted=machine.lanes.evicted,
        restored=restores.done,
        restoring=restores.running,
        restores_waiting=restores.waiting,
        persist_failures=machine.persist_failures + passage.failures,
        restore_failures=restores.failures,
        publish_failures=publisher.failures if publisher is not None else 0,
        repeats=machine.repeats.count,
        hottest=tuple(machine.settlement.hottest.top()),
        busiest=tuple(processor.busiest.top()),
    )


def _of_mailbox(mailbox: CommandMailbox) -> MailboxFigures:
    return MailboxFigures(
        index=mailbox.index,
        max_offset=mailbox.max_offset,
        consume_offset=mailbox.consume_offset,
        depth=mailbox.depth,
        unpersisted=mailbox.events.waiting,
        handled=mailbox.handled,
        wait_s=mailbox.wait_s,
        handle_s=mailbox.handle_s,
        conflicts=mailbox.conflicts,
        reruns=mailbox.reruns,
        slow=mailbox.slow,
    )
