"""A worker: runs a domain's command mailboxes in a process of its own, on a store elsewhere.

It listens as a server does, and takes commands (SEND) alone. Any number of workers may own the same aggregates by accident:
then their changes meet at the store as version conflicts, and the mailboxes heal them.
"""

from __future__ import annotations

import contextlib
import socket
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio
import structlog
import trio

from eventstore import __version__
from eventstore.client.batches import Run
from eventstore.client.reaching import reached
from eventstore.client.store import NetworkStore
from eventstore.domain.domain import Domain
from eventstore.domain.loading import load
from eventstore.domain.running import Running
from eventstore.errors import ConnectionLost, EventStoreError, InvalidArgument, UnsupportedVersion, VersionConflict
from eventstore.model import Committed, Event
from eventstore.protocol.requests import Send, WireCommit
from eventstore.server.commands import Commands
from eventstore.server.dispatch import Dispatch
from eventstore.server.gate import Gate
from eventstore.server.http import http_server
from eventstore.server.incoming import Incoming
from eventstore.server.listening import (
    bind,
    bounds,
    calm_collector,
    check_checkpoint_folder,
    gate_limits,
    listen,
    raise_descriptor_limit,
    stop_on_signals,
)
from eventstore.server.mailroom import Below, Found, ServerBatch, ServerMailboxes, collect_figures, linked, mailboxes_of
from eventstore.server.metrics import registry_of
from eventstore.server.reactions import Reactions
from eventstore.server.settings import ServerSettings
from eventstore.store.appending import COMMITTED, CONFLICT, DUPLICATE, REFUSED, Outcome, RawCommit
from eventstore.store.embedded import Stats

_PAGE_EVENTS: Final = 500
_PAUSE_S_MIN: Final = 0.05
_PAUSE_S_MAX: Final = 2.0
Flying = Run[anyio.Event, WireCommit, Committed]


@dataclass(slots=True)
class Worker:
    """A worker that is working. `address` is where; `stop` ends it in order. `store_lost`: why its store is none any more."""

    address: str
    http_address: str | None
    gate: Gate
    commands: Commands
    mailboxes: ServerMailboxes
    stopping: trio.Event
    store_lost: EventStoreError | None = None

    def stop(self) -> None:
        self.stopping.set()

    def give_up(self, error: EventStoreError) -> None:
        """Stops with an error: no further attempt to reach the store can succeed."""
        if self.store_lost is None:
            self.store_lost = error
            structlog.get_logger("eventstore.worker").error("stopping, because the store is another one", error=error.message)
        self.stop()


async def work(
    settings: ServerSettings,
    store_address: str,
    checkpoint: Path | None,
    wait_s: float = 0.0,
    *,
    task_status: trio.TaskStatus[Worker] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Works until it is told to stop.

    `checkpoint`: where it is kept how far the domain's reactions have come; None: they are not run here. `wait_s`: for so many
    seconds it tries to reach a store that is not there yet.

    Raises:
        DomainRefused, InvalidArgument: there is no domain, or it cannot be loaded.
        ConnectionLost: the store cannot be reached at the start, within `wait_s`; or, later, another store answers at
            its address.
        UnsupportedVersion: or one that speaks another version of the protocol.
    """
    if settings.domain is None:
        raise InvalidArgument("a worker needs a domain; name it with --domain MODULE:NAME", field="domain")
    check_checkpoint_folder(checkpoint)
    domain = load(settings.domain)
    raise_descriptor_limit()
    log = structlog.get_logger("eventstore.worker")

    def tell(error: EventStoreError) -> None:
        log.warning("waiting for the store", error=error.message, wait_s=wait_s)

    reaching = reached(store_address, name="eventstore-worker", wait_s=wait_s, on_waiting=tell)
    with bind(settings.listen) as listener:  # before the store is waited for
        async with reaching as store, _working(settings, domain, store, checkpoint, listener) as worker:
            log.info("working", version=__version__, address=worker.address, http=worker.http_address, store=store_address)
            calm_collector()
            task_status.started(worker)
            await worker.stopping.wait()
            log.info("stopping", connections=len(worker.gate.connections))
            await _wind_down(worker, settings.stop_timeout_s)
    log.info("stopped")
    if worker.store_lost is not None:
        raise worker.store_lost


@asynccontextmanager
async def _working(
    settings: ServerSettings, domain: Domain, store: NetworkStore, checkpoint: Path | None, listener: socket.socket
) -> AsyncIterator[Worker]:
    async with trio.open_nursery() as nursery:
        below = remote_below(store, nursery, lambda error: worker.give_up(error))
        commands, incoming = Commands(domain, below), Incoming(settings.incoming_bytes_max)
        mailboxes = mailboxes_of(Running(domain, below.read_events), below, bounds(settings), commands.answer)
        commands.deliver_to(mailboxes)
        await nursery.start(mailboxes.run)
        reactions = _reactions(domain, checkpoint, store, mailboxes, below)

        def figures() -> Stats:
            return {**collect_figures(mailboxes), **dispatch.figures()}

        def health() -> Stats:
            failure = None if reactions is None else reactions.failure
            return {"healthy": not commands.stopping, "reactions_failure": failure, **figures()}

        def end_turn() -> None:
            commands.end_turn()
            incoming.end_turn()

        dispatch = Dispatch(uuid.UUID(bytes=store.store_uuid), settings.requests_max, {Send: commands.send}, figures)
        with contextlib.ExitStack() as stack:
            gate = Gate(listener, gate_limits(settings), dispatch.handle, end_turn)
            for part in (commands, incoming, dispatch):
                part.connect(gate)
            listen(listener, settings.listen)
            http_address = stack.enter_context(http_server(settings.http, registry_of(figures), health))
            host, port = listener.getsockname()[:2]
            worker = Worker(f"tcp://{host}:{port}", http_address, gate, commands, mailboxes, trio.Event())
            nursery.start_soon(gate.run, _Room())
            nursery.start_soon(gate.keep_house)
            if reactions is not None:
                nursery.start_soon(reactions.run)
            yield worker
        nursery.cancel_scope.cancel()


async def _wind_down(worker: Worker, timeout_s: float) -> None:
    worker.commands.stopping = True
    worker.gate.say_goodbye()
    with trio.move_on_after(timeout_s):
        await worker.mailboxes.stop(timeout_s if worker.store_lost is None else 0)
        await worker.gate.wait_until_settled()


async def run(settings: ServerSettings, store_address: str, checkpoint: Path | None, wait_s: float = 0.0) -> None:
    """What `eventstore work` does: `work` until a signal."""
    worker: Worker | None = None

    async def stop() -> None:
        await asked.wait()
        if worker is None:  # it waits for its store still, and has nothing to finish
            nursery.cancel_scope.cancel()
        else:
            worker.stop()

    async with trio.open_nursery() as nursery:
        asked = trio.Event()
        await nursery.start(stop_on_signals, asked)
        nursery.start_soon(stop)
        worker = await nursery.start(work, settings, store_address, checkpoint, wait_s)


def remote_below(store: NetworkStore, nursery: trio.Nursery, on_lost: Callable[[EventStoreError], None]) -> Below:
    """On a client: changes become commits of one frame, in the order they come. `on_lost` hears that no further attempt to
    reach the store can succeed.
    """

    def persist(batch: ServerBatch) -> None:
        try:
            flying = store.put_raw(_bare(linked(batch)))
        except EventStoreError as error:
            tell(error)
            raise
        nursery.start_soon(_deliver, batch, flying, tell)

    def tell(error: EventStoreError) -> None:
        if isinstance(error, UnsupportedVersion) or (isinstance(error, ConnectionLost) and "actual" in error.fields):
            on_lost(error)

    async def read_events(aggregate_id: str, from_version: int) -> AsyncGenerator[list[Event], None]:
        page: list[Event] = []
        try:
            async for event in store.read(aggregate_id, from_version):
                page.append(event)
                if len(page) == _PAGE_EVENTS:
                    yield page
                    page = []
        except EventStoreError as error:
            tell(error)
            raise
        if page:
            yield page

    def find_command(aggregate_id: str, command_id: str, found: Found) -> None:
        nursery.start_soon(_find, store, aggregate_id, command_id, found, tell)

    return Below(persist, store.flush, read_events, find_command, shared=True)


def _bare(commits: Sequence[RawCommit]) -> list[WireCommit]:
    """The commits as they travel: the store elsewhere counts and checks their events itself."""
    return [
        (aggregate_id, expected, command_id, when, events[0] if isinstance(events, tuple) else events)
        for aggregate_id, expected, command_id, when, events in commits
    ]


async def _deliver(batch: ServerBatch, flying: Flying, tell: Callable[[EventStoreError], None]) -> None:
    await flying.batch.done.wait()
    outcomes = flying.outcomes()
    lost = next((outcome for outcome in outcomes if isinstance(outcome, ConnectionLost | UnsupportedVersion)), None)
    if lost is not None:
        tell(lost)
        batch.fail(lost)
    else:
        batch.deliver(list(map(_raw_outcome, outcomes)))


def _raw_outcome(outcome: Committed | EventStoreError) -> Outcome:
    if isinstance(outcome, Committed):
        return DUPLICATE if outcome.duplicate else COMMITTED, outcome.version, outcome.sequence
    if isinstance(outcome, VersionConflict):
        actual = outcome.fields["actual"]
        assert isinstance(actual, int)
        return CONFLICT, actual, 0
    return REFUSED, outcome, 0


async def _find(
    store: NetworkStore, aggregate_id: str, command_id: str, found: Found, tell: Callable[[EventStoreError], None]
) -> None:
    """Asks until the store answers: a refusal that nobody could look up is no outcome."""
    pause_s = _PAUSE_S_MIN
    while True:
        try:
            stored = await store.find_command(aggregate_id, command_id)
        except EventStoreError as error:
            tell(error)
            if not error.retriable:
                return found(error)
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)
        else:
            return found(None if stored is None else stored._replace(duplicate=True))


def _reactions(
    domain: Domain, checkpoint: Path | None, store: NetworkStore, mailboxes: ServerMailboxes, below: Below
) -> Reactions | None:
    if checkpoint is not None:
        return Reactions(store, checkpoint, domain, mailboxes, below)
    if domain.reactions:
        structlog.get_logger("eventstore.worker").warning(
            "the domain's reactions are not run here; --checkpoint FILE has this worker run them",
            reactions=", ".join(sorted(domain.reactions)),
        )
    return None


class _Room:
    """There is always room: what mailboxes do not take is refused as overloaded."""

    full = False
    writing = False

    async def wait_for_room(self) -> None:
        await trio.lowlevel.checkpoint()
