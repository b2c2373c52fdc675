"""Runs a server: opens the store, opens the listener, serves, and stops in order.

On SIGTERM or SIGINT it accepts no more connections, sends GOODBYE to the clients, makes appends and messages in flight durable
and answers them, ends waiting pulls, then syncs and closes. A poisoned store stops the server with an error, because only a
restart can judge what is on disk. A poisoned broker does not stop it (see `broker.service`).
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import structlog
import trio
from prometheus_client import make_wsgi_app
from prometheus_client.registry import Collector

from eventstore import __version__
from eventstore.broker.broker import Broker, open_broker
from eventstore.domain.asyncio_calls import refuse_asyncio
from eventstore.domain.domain import Domain
from eventstore.domain.import_path import load
from eventstore.domain.runtime import DomainRuntime
from eventstore.records.cluster_map import ClusterMap, single_map
from eventstore.server.backlog import ServerBacklog
from eventstore.server.bootstrap import (
    bind,
    calm_collector,
    gate_limits,
    listen,
    raise_descriptor_limit,
    stop_on_signals,
    until,
    yield_often,
)
from eventstore.server.broker.broker_metrics import BrokerCollector
from eventstore.server.broker.service import BrokerService
from eventstore.server.http import http_server
from eventstore.server.mailbox_wiring import ArrivalOrder, ServerMailboxes, embedded_access, make_mailboxes
from eventstore.server.net.gate import Gate
from eventstore.server.outbox.local_outbox import Publishing, check_publish
from eventstore.server.reactions.other_shards import OtherShards
from eventstore.server.reactions.reaction_handlers import parking_routes, reaction_routes
from eventstore.server.reactions.reaction_metrics import ReactionCollector
from eventstore.server.reactions.reaction_runner import ReactionRunner
from eventstore.server.reports import Reports, sources_of
from eventstore.server.requests.append_batcher import AppendBatcher
from eventstore.server.requests.command_batcher import CommandBatcher
from eventstore.server.requests.command_replies import CommandReplies
from eventstore.server.requests.dispatch import Dispatch
from eventstore.server.requests.leadership import Leadership
from eventstore.server.requests.map_requests import MapRequests
from eventstore.server.requests.owned_slots import appends_of, commands_of
from eventstore.server.requests.paced_scans import PacedScans
from eventstore.server.requests.place import Place
from eventstore.server.requests.read_requests import ReadRequests
from eventstore.server.requests.subscriptions import Subscriptions
from eventstore.server.requests.waiting_commands import WaitingCommands
from eventstore.settings.server import ServerSettings
from eventstore.store.data_folder import ShardIdentity
from eventstore.store.embedded import EmbeddedStore
from eventstore.store.open_store import open_store

REACTIONS: Final = "reactions.json"
BROKER: Final = "broker"


@dataclass(slots=True)
class Server:
    """A running server. `stop` ends it in order."""

    address: str
    http_address: str | None
    store: EmbeddedStore
    broker: BrokerService | None
    gate: Gate
    appends: AppendBatcher
    commands: CommandBatcher
    mailboxes: ServerMailboxes
    maps: MapRequests
    reports: Reports
    stopping: trio.Event

    def stop(self) -> None:
        self.stopping.set()


async def serve(
    settings: ServerSettings,
    shard: ShardIdentity | None = None,
    known: ClusterMap | None = None,
    *,
    leadership: Leadership | None = None,
    task_status: trio.TaskStatus[Server] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serves until `Server.stop` is called. Wrong settings are reported before the data folder is created.

    `shard`: it serves this shard of a cluster, of which it has the map `known`; with None a store of its own. `leadership`: it
    leads a shard that has replicas.

    Raises:
        DomainRefused: the domain cannot be loaded.
        FolderRefused, Corrupt: the data folder cannot be opened, or an address cannot be bound.
        Poisoned: the disk failed while serving.
    """
    log = structlog.get_logger("eventstore.server")
    raise_descriptor_limit()
    domain = Domain() if settings.domain is None else load(settings.domain)
    refuse_asyncio(domain, reactions=True)
    check_publish(settings.publish, domain, with_broker=settings.broker)
    if settings.http is not None:
        bind(settings.http, "http").close()
    with bind(settings.listen) as listener:
        await _serve(settings, domain, listener, shard, known, leadership, task_status)
    log.info("stopped")


async def _serve(
    settings: ServerSettings,
    domain: Domain,
    listener: socket.socket,
    shard: ShardIdentity | None,
    known: ClusterMap | None,
    leads: Leadership | None,
    task_status: trio.TaskStatus[Server],
) -> None:
    log = structlog.get_logger("eventstore.server")
    epoch, events = (None, None) if leads is None else (leads.epoch, leads.events)
    async with open_store(settings.data, settings.store_settings, shard=shard, epoch=epoch, replication=events) as store:
        at = Place(shard, known or single_map(store.opened.uuid.bytes), leads)
        async with (
            _broker_of(settings, leads, at.one_of_several) as broker,
            _listening(settings, store, broker, domain, listener, at) as server,
        ):
            calm_collector()
            yield_often()
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
            async with until(server.stopping, store.committer.poisoned):
                await trio.sleep_forever()
            log.info("stopping", connections=len(server.gate.connections))
            await _wind_down(server, settings.stop_timeout_s)
    if store.engine.failed is not None:
        raise store.engine.failed


@asynccontextmanager
async def _broker_of(settings: ServerSettings, leads: Leadership | None, shard: int | None) -> AsyncIterator[Broker | None]:
    """Opens the broker next to the store, which already holds the lock of the data folder; None if it is switched off."""
    if not settings.broker:
        yield None
        return
    path, own = settings.data / BROKER, settings.broker_settings
    if leads is None:
        opening = open_broker(path, own, shard=shard)
    else:
        opening = open_broker(
            path, own, files=leads.files, identity=leads.identity, epoch=leads.epoch, replication=leads.messages, shard=shard
        )
    async with opening as broker:
        for group, topic, queue, before, now in broker.clamped:
            structlog.get_logger("eventstore.server").warning(
                "an offset outside its queue was clamped",
                group=group,
                topic=topic,
                queue=queue,
                before=before,
                now=now,
            )
        yield broker


@asynccontextmanager
async def _listening(
    settings: ServerSettings,
    store: EmbeddedStore,
    broker: Broker | None,
    domain: Domain,
    listener: socket.socket,
    place: Place,
) -> AsyncIterator[Server]:
    leads = place.leadership
    if leads is not None:
        assert broker is not None, "a shard with replicas has a broker"
        await leads.begin(store, broker)
    files = None if leads is None else leads.files
    async with trio.open_nursery() as nursery:
        gate, access, order = Gate(listener, gate_limits(settings)), embedded_access(store), ArrivalOrder()
        waiting = WaitingCommands(gate, settings.waiting_commands_bytes_max, settings.mailbox_options.waiting_bytes_max)
        replies = CommandReplies(gate, access.find_command, waiting)
        mailboxes = make_mailboxes(DomainRuntime(domain, access.read_events), access, settings.mailbox_options, replies.answer)
        await nursery.start(mailboxes.run)
        maps = MapRequests(gate, place.known)
        slots = place.slots(maps)
        appends = appends_of(slots)(gate, mailboxes, replies, order)
        commands = commands_of(slots)(gate, domain, mailboxes, replies, waiting, order)
        scans = PacedScans(gate.turns)
        reads = ReadRequests(gate, store.engine, nursery, scans)
        subscriptions = Subscriptions(gate, store.committer, nursery, scans)
        host, port = listener.getsockname()[:2]
        others = None if slots is None else OtherShards(slots, host, port)
        reactions = ReactionRunner(store, settings.data / REACTIONS, domain, mailboxes, access.find_command, others, files)
        service = None if broker is None else BrokerService(gate, broker, nursery)
        publishing = Publishing(store, broker, settings.publish, domain, settings.data, files)

        def end_turn() -> None:
            order.end_turn()
            if service is not None:
                service.end_turn()

        reports = Reports(
            lambda: store.engine.failed is None and not appends.stopping,
            reactions,
            () if service is None else (service, publishing),
        )
        routes = appends.routes | commands.routes | reads.routes | subscriptions.routes
        routes |= maps.routes | reaction_routes(gate, nursery, reactions) | parking_routes(gate, nursery, store)
        if slots is not None:
            routes = slots.guard(routes)
        if service is not None:
            routes |= service.routes
        node = None if broker is None else broker.opened.node
        if leads is not None:
            gate.may_send = leads.may_send
            leads.send_with(gate.flush)
        dispatch = Dispatch(
            gate, store.opened.uuid, settings.requests_max, routes, reports.stats, node, place.seat(maps), access.durability
        )
        sources = sources_of(store, mailboxes, waiting, dispatch, subscriptions, service, publishing, reactions)
        collectors: list[Collector] = [ReactionCollector(reactions)]
        if broker is not None:
            collectors.append(BrokerCollector(broker))
        reports.add(sources, collectors)
        with http_server(settings.http, make_wsgi_app(reports.registry), reports.health) as http_address:
            listen(listener, settings.listen)
            nursery.start_soon(gate.run, dispatch.handle, end_turn, ServerBacklog(store.committer, mailboxes))
            nursery.start_soon(gate.run_timeouts)
            nursery.start_soon(replies.run)
            nursery.start_soon(reactions.run)
            nursery.start_soon(publishing.run)
            if others is not None:
                nursery.start_soon(others.run)
            address = f"tcp://{host}:{port}"
            yield Server(address, http_address, store, service, gate, appends, commands, mailboxes, maps, reports, trio.Event())
            nursery.cancel_scope.cancel()


async def _wind_down(server: Server, timeout_s: float) -> None:
    server.appends.stopping = server.commands.stopping = True
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
    """Runs `serve` until a signal; this is `eventstore serve`."""
    async with trio.open_nursery() as nursery:
        stopping = trio.Event()
        await nursery.start(stop_on_signals, stopping)
        server: Server = await nursery.start(serve, settings)
        await stopping.wait()
        server.stop()
