"""The command mailboxes of a server: what connects them to the domain above and the committer beneath.

appends of a turn ──► Mailboxes.append ─┐
                                        ├─► Committer.submit … kick ──► outcomes ──► answers
commands of a turn ─► Mailboxes.submit ─┘
                      restore ◄── EmbeddedStore
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import trio

from eventstore.domain.running import Change, Decided, ReadEvents, Running, Seat
from eventstore.errors import EventStoreError, ShuttingDown
from eventstore.model import VERSION_MAX, Committed, Event
from eventstore.store.appending import REFUSED, Outcome, Packed, RawCommit
from eventstore.store.embedded import EmbeddedStore, Stats
from eventstore.store.page import decode_page
from eventstore_mailbox import Batch, Entry, Mailboxes, Options, Ports

_log = logging.getLogger(__name__)

ServerBatch = Batch[Change, Outcome]
ServerEntry = Entry[Decided, Outcome]
ServerMailboxes = Mailboxes[Decided, Seat, Change, Outcome]

_ENVELOPE_BYTES: Final = 40
_RANKED: Final = 8
_REPLAYED_AT_ONCE: Final = 256  # events, in half a millisecond: a page of thousands would hold up everybody


Found = Callable[["Committed | EventStoreError | None"], None]
"""Is called with what a command became, if it was stored; now or later."""


@dataclass(frozen=True, slots=True)
class Below:
    """What a set of mailboxes stands on: a store in this process, or a client of one elsewhere, which others write to
    (`shared`).
    """

    persist: Callable[[ServerBatch], None]
    flush: Callable[[], None]
    read_events: ReadEvents
    find_command: Callable[[str, str, Found], None]
    shared: bool


def embedded_below(store: EmbeddedStore) -> Below:
    """On the committer of this process: changes and plain appends become batches for the disk in the order they come."""
    committer = store.committer

    def persist(batch: ServerBatch) -> None:
        committer.submit(linked(batch), batch.deliver, batch.source)

    async def read_events(aggregate_id: str, from_version: int) -> AsyncGenerator[list[Event], None]:
        low: int | None = from_version if store.engine.version(aggregate_id) >= from_version else None
        while low is not None:
            page = await store.read_page(aggregate_id, low, VERSION_MAX, False)
            events = decode_page(page.records)
            if events and events[0].version < low:
                events = [event for event in events if event.version >= low]
            for start in range(0, len(events), _REPLAYED_AT_ONCE):
                if start:
                    await trio.lowlevel.checkpoint()
                yield events[start : start + _REPLAYED_AT_ONCE]
            low = page.next

    def find_command(aggregate_id: str, command_id: str, found: Found) -> None:
        try:
            view = store.engine.find_command(aggregate_id, command_id)
        except EventStoreError as error:
            found(error)
        else:
            found(None if view is None else Committed(aggregate_id, view.last_version, view.last_sequence, duplicate=True))

    return Below(persist, committer.kick, read_events, find_command, shared=False)


def linked(batch: ServerBatch) -> Sequence[RawCommit]:
    """The changes as commits; one that rests on another of this batch names that one's command beside the version, lest the
    version fits by accident where the other was not committed.
    """
    commits: list[Any] = batch.changes
    if not batch.followers:
        return commits
    followers, named = set(batch.followers), list[RawCommit](commits)
    followed = {commits[place][0] for place in followers}
    latest: dict[str, str] = {}
    for place, commit in enumerate(commits):
        aggregate_id = commit[0]
        if aggregate_id in followed:  # few are, and for all others there is nothing to do
            if place in followers:
                named[place] = (aggregate_id, f"{commit[1]}/{latest[aggregate_id]}", *commit[2:])
            latest[aggregate_id] = commit[2]
    return named


def mailboxes_of(
    running: Running, below: Below, options: Options, answer: Callable[[Sequence[ServerEntry]], None]
) -> ServerMailboxes:
    """The mailboxes of a domain on what is beneath it. `answer` gets commands that are settled."""
    return Mailboxes(
        Ports(
            handle=running.handle,
            restore=running.restore,
            refresh=running.refresh if below.shared else None,
            persist=below.persist,
            answer=answer,
            clock=time.perf_counter,
            refusal=_refused,
            flush=below.flush,
            untouched=running.untouched,
            size=_size_bytes,
            on_slow=_warn_of_slow,
            on_error=_log_failure,
        ),
        options,
    )


def _refused(error: Exception) -> Outcome:
    return REFUSED, ShuttingDown(str(error)), 0


def _size_bytes(change: Change) -> int:
    events: bytes | Packed = change[4]  # bytes where it is a plain append
    size = len(events[0] if type(events) is tuple else events)
    return size + 4 * (len(change[0]) + len(change[2])) + _ENVELOPE_BYTES


def _warn_of_slow(entry: ServerEntry, seconds: float) -> None:
    _log.warning(
        "handler %s blocked all others for %.0f ms on %s; make it async, or do the work elsewhere",
        entry.command.handler.name, seconds * 1000, ascii(entry.aggregate_id),
    )  # fmt: skip


def _log_failure(what: str, error: BaseException) -> None:
    trace = None if isinstance(error, EventStoreError) else error
    _log.warning("%s failed and is tried again: %s", what, error, exc_info=trace)


def collect_figures(mailboxes: ServerMailboxes) -> Stats:
    """What the mailboxes count, by name; times are sums over all commands."""
    found = mailboxes.figures()
    each = found.mailboxes
    return {
        "mailboxes": len(each),
        "mailbox_depth": found.depth,
        "mailbox_depth_max": max(mailbox.depth for mailbox in each),
        "appends_passed": found.passed,
        "commands_handled": sum(mailbox.handled for mailbox in each),
        "command_wait_microseconds": round(sum(mailbox.wait_s for mailbox in each) * 1_000_000),
        "command_handle_microseconds": round(sum(mailbox.handle_s for mailbox in each) * 1_000_000),
        "command_conflicts": sum(mailbox.conflicts for mailbox in each),
        "command_reruns": sum(mailbox.reruns for mailbox in each),
        "command_repeats": found.repeats,
        "handlers_slow": sum(mailbox.slow for mailbox in each),
        "aggregates_in_memory": found.aggregates,
        "aggregates_evicted": found.evicted,
        "aggregates_restored": found.restored,
        "aggregates_restoring": found.restoring + found.restores_waiting,
        "persist_failures": found.persist_failures,
        "restore_failures": found.restore_failures,
        "hottest_aggregates": _shown(found.hottest),
        "busiest_aggregates": _shown(found.busiest),
    }


def _shown(ranked: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{ascii(name)[1:-1]}: {count}" for name, count in ranked[:_RANKED])
