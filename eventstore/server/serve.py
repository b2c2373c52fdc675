"""Runs a server: opens the store, opens the listener, serves, and stops in order.

Stopping (SIGTERM, SIGINT): no new connections, GOODBYE to the clients, appends and messages on their way are made durable and
answered, pulls that wait are sent away, then sync and close. A poisoned store stops the server with an error: what is on disk
has to be judged by a new start. A poisoned broker does not (see `broker_service`).
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog
import trio

from eventstore import __version__
from eventstore.broker.broker import Broker, open_broker
from eventstore.domain.domain import Domain
from eventstore.domain.loading import load
from eventstore.domain.running import Running
from eventstore.protocol.requests import (
    Append,
    Credit,
    FindCommand,
    Read,
    ReadAll,
    Request,
    Send,
    Subscribe,
    Unsubscribe,
    Version,
)
from eventstore.server.broker_metrics import BrokerCollector
from eventstore.server.broker_service import BrokerService
from eventstore.server.commands import Commands
from eventstore.server.dispatch import Dispatch, Route
from eventstore.server.gate import Gate
from eventstore.server.http import http_server
from eventstore.server.incoming import Incoming
from eventstore.server.intake import Intake
from eventstore.server.listening import (
    bind,
    bounds,
    calm_collector,
    gate_limits,
    listen,
    raise_descriptor_limit,
    stop_on_signals,
)
from eventstore.server.mailroom import ServerMailboxes, collect_figures, embedded_below, mailboxes_of
from eventstore.server.metrics import registry_of
from eventstore.server.publishing import Publishing, check_publish
from eventstore.server.reactions import Reactions
from eventstore.server.reads import Reads
from eventstore.server.settings import ServerSettings
from eventstore.server.subscriptions import Subscriptions
from eventstore.store.committer import Committer
from eventstore.store.embedded import EmbeddedStore, Stats, collect_stats, open_store

_REACTIONS = "reactions.json"
_BROKER = "broker"


@dataclass(slots=True)
class Server:
    """A server that is serving. `address` is where; `stop` ends it in order."""

    address: str
    http_address: str | None
    store: EmbeddedStore
    broker: BrokerService | None
    gate: Gate
    intake: Intake
    commands: Commands
    mailboxes: ServerMailboxes
    stopping: trio.Event

    def stop(self) -> None:
        self.stopping.set()


async def serve(settings: ServerSettings, *, task_status: trio.TaskStatus[Server] = trio.TASK_STATUS_IGNORED) -> None:
    """Serves until it is told to stop. What can be wrong with the settings shows before the data folder is made.

    Raises:
        DomainRefused: the domain cannot be loaded.
        FolderRefused, Corrupt: the data folder cannot be opened, or an address cannot be listened on.
        Poisoned: the disk failed while serving.
    """
    log = structlog.get_logger("eventstore.server")
    raise_descriptor_limit()
    domain = Domain() if settings.domain is None else load(settings.domain)
    settings.store()
    settings.broker_settings()
    check_publish(settings.publish, with_broker=settings.broker)
    if settings.http is not None:
        bind(settings.http, "http").close()
    with bind(settings.listen) as listener:
        await _serve(settings, domain, listener, task_status)
    log.info("stopped")


async def _serve(
    settings: ServerSettings, domain: Domain, listener: socket.socket, task_status: trio.TaskStatus[Server]
) -> None:
    log = structlog.get_logger("eventstore.server")
    async with open_store(settings.data, settings.store()) as store:
        async with _broker_of(settings) as broker, _listening(settings, store, broker, domain, listener) as server:
            calm_collector()
            log.info(
                "serving",
                version=__version__,
                address=server.address,
                http=server.http_address,
                domain=settings.domain,
                data=str(settings.data),
                events=store.engine.visible_sequence,
                event_files=store.report.files,
                torn_bytes=store.report.torn_bytes,
                torn_copy=store.report.torn_copy,
                directory=store.report.directory,
                messages=None if broker is None else broker.engine.visible_number,
                open_seconds=round(store.report.seconds, 3),
            )
            task_status.started(server)
            await _until_stopped(server)
            log.info("stopping", connections=len(server.gate.connections))
            await _wind_down(server, settings.stop_timeout_s)
    if store.engine.failed is not None:
        raise store.engine.failed


@asynccontextmanager
async def _broker_of(settings: ServerSettings) -> AsyncIterator[Broker | None]:
    """The broker beside the store, whose lock on the data folder is held by now; None where there is to be none."""
    if not settings.broker:
        yield None
        return
    async with open_broker(settings.data / _BROKER, settings.broker_settings()) as broker:
        for group, topic, queue, before, now in broker.clamped:
            structlog.get_logger("eventstore.server").warning(
                "an offset outside of its queue was brought into it",
                group=group,
                topic=topic,
                queue=queue,
                before=before,
                now=now,
            )
        yield broker


@asynccontextmanager
async def _listening(
    settings: ServerSettings, store: EmbeddedStore, broker: Broker | None, domain: Domain, listener: socket.socket
) -> AsyncIterator[Server]:
    async with trio.open_nursery() as nursery:
        below = embedded_below(store)
        commands, incoming = Commands(domain, below), Incoming(settings.incoming_bytes_max)
        mailboxes = mailboxes_of(Running(domain, below.read_events), below, bounds(settings), commands.answer)
        commands.deliver_to(mailboxes)
        await nursery.start(mailboxes.run)
        intake = Intake(mailboxes)
        intake.go_behind(commands.end_turn)
        commands.go_behind(intake.end_turn)
        reads, subscriptions = Reads(store.engine, nursery), Subscriptions(store.committer, nursery)
        reactions = Reactions(store, settings.data / _REACTIONS, domain, mailboxes, below)
        service = None if broker is None else BrokerService(broker, nursery)
        publishing = Publishing(store, broker, settings.publish, settings.data)

        def end_turn() -> None:
            commands.end_turn()
            intake.end_turn()
            if service is not None:
                service.end_turn()
            incoming.end_turn()

        def figures() -> Stats:
            counted = {**dispatch.figures(), "subscriptions": subscriptions.count}
            found = {**collect_stats(store), **collect_figures(mailboxes), **counted}
            if service is not None:
                found |= {**service.figures(), **publishing.figures()}
                found["attention"] = found["attention"] or service.attention or publishing.attention
            return found

        routes = _routes(intake, commands, reads, subscriptions, service)
        node = None if broker is None else broker.opened.node
        dispatch = Dispatch(store.opened.uuid, settings.requests_max, routes, figures, node)
        gate = Gate(listener, gate_limits(settings), dispatch.handle, end_turn)
        for part in (commands, intake, incoming, reads, subscriptions, dispatch):
            part.connect(gate)
        if service is not None:
            service.connect(gate)

        def health() -> Stats:
            healthy = store.engine.failed is None and not intake.stopping
            return {"healthy": healthy, "reactions_failure": reactions.failure, **figures()}

        registry = registry_of(figures)
        if broker is not None:
            registry.register(BrokerCollector(broker))
        with http_server(settings.http, registry, health) as http_address:
            listen(listener, settings.listen)
            nursery.start_soon(gate.run, _Room(store.committer, mailboxes))
            nursery.start_soon(gate.keep_house)
            nursery.start_soon(reactions.run)
            nursery.start_soon(publishing.run)
            host, port = listener.getsockname()[:2]
            address = f"tcp://{host}:{port}"
            yield Server(address, http_address, store, service, gate, intake, commands, mailboxes, trio.Event())
            nursery.cancel_scope.cancel()


def _routes(
    intake: Intake, commands: Commands, reads: Reads, subscriptions: Subscriptions, service: BrokerService | None
) -> dict[type[Request], Route]:
    routes: dict[type[Request], Route] = {
        Append: intake.append, Send: commands.send, Read: reads.read, ReadAll: reads.read_all, Version: reads.version,
        FindCommand: reads.find_command, Subscribe: subscriptions.begin, Credit: subscriptions.credit,
        Unsubscribe: subscriptions.end,
    }  # fmt: skip
    return routes if service is None else routes | service.routes


class _Room:
    """What holds the gate back: too much on its way to the disk. (A full mailbox does not: it would hold up everybody.)"""

    def __init__(self, committer: Committer, mailboxes: ServerMailboxes) -> None:
        self._committer = committer
        self._mailboxes = mailboxes

    @property
    def full(self) -> bool:
        return self._committer.full or self._mailboxes.passage_full

    @property
    def writing(self) -> bool:
        return self._committer.writing

    async def wait_for_room(self) -> None:
        while self.full:
            if self._committer.full:
                await self._committer.wait_for_room()
            else:
                await self._committer.advanced.park()


async def _until_stopped(server: Server) -> None:
    """Returns when told to stop, or when the store is poisoned."""
    async with trio.open_nursery() as nursery:

        async def either(event: trio.Event) -> None:
            await event.wait()
            nursery.cancel_scope.cancel()

        nursery.start_soon(either, server.stopping)
        nursery.start_soon(either, server.store.committer.poisoned)


async def _wind_down(server: Server, timeout_s: float) -> None:
    server.intake.stopping = server.commands.stopping = True
    if server.broker is not None:
        server.broker.stop()
    server.gate.say_goodbye()
    with trio.move_on_after(timeout_s):
        await server.mailboxes.stop(timeout_s)
        await server.store.committer.drain()
        if server.broker is not None:
            await server.broker.drain()
        await server.gate.wait_until_settled()


async def run(settings: ServerSettings) -> None:
    """What `eventstore serve` does: `serve` until a signal."""
    async with trio.open_nursery() as nursery:
        asked = trio.Event()
        await nursery.start(stop_on_signals, asked)
        server: Server = await nursery.start(serve, settings)
        await asked.wait()
        server.stop()
