"""Runs a server: opens the store, opens the listener, serves, and stops in order.

On SIGTERM or SIGINT it accepts no more connections, sends GOODBYE to the clients, makes appends and messages in flight durable
and answers them, ends waiting pulls, then syncs and closes. A poisoned store stops the server with an error, because only a
restart can judge what is on disk. A poisoned broker does not stop it (see `broker.service`).
"""

from __future__ import annotations

import socket
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final

import trio

from eventstore import __version__
from eventstore.alarms.silences import SILENCES
from eventstore.broker.broker import Broker
from eventstore.domain.asyncio_calls import refuse_asyncio
from eventstore.domain.domain import Domain
from eventstore.domain.import_path import load
from eventstore.domain.runtime import DomainRuntime
from eventstore.domain.timers.setting import told_of_settings
from eventstore.metrics import MetricSource
from eventstore.protocol.server_info import BackupCut
from eventstore.records.cluster_map import ClusterMap, single_map
from eventstore.server.access.security import Security
from eventstore.server.aggregate_snapshots import SNAPSHOTS, snapshot_feature, snapshots_of
from eventstore.server.alarms.alarm_handlers import alarm_routes, source_of
from eventstore.server.alarms.known_figures import alarms_of
from eventstore.server.alarms.reported_alarms import alarm_feature
from eventstore.server.backlog import ServerBacklog
from eventstore.server.backups import BACKUPS, Backups
from eventstore.server.bootstrap import (
    bind,
    calm_collector,
    gate_limits,
    listen,
    raise_descriptor_limit,
    until,
    yield_often,
)
from eventstore.server.broker.beside import broker_beside
from eventstore.server.broker.handlers import routes_of
from eventstore.server.broker.service import BrokerService
from eventstore.server.console_subject import check_http_api, console_subject
from eventstore.server.feature import Feature, begin, routes_of_all, wind_down
from eventstore.server.kept_commands import check_keep_commands, kept_commands
from eventstore.server.logs import get_logger
from eventstore.server.mailbox_metrics import MAILBOX_METRICS
from eventstore.server.mailbox_wiring import ArrivalOrder, ServerMailboxes, embedded_access, make_mailboxes
from eventstore.server.net.deferred_replies import DeferredReplies
from eventstore.server.net.gate import Gate
from eventstore.server.outbox.publishing import Publishing, check_publish, publishing_of
from eventstore.server.outbox.publishing_metrics import publishing_feature
from eventstore.server.own_commands import OwnCommands
from eventstore.server.process_metrics import process_feature
from eventstore.server.reactions.connected_projections import ConnectedProjections
from eventstore.server.reactions.followed_chains import FollowedChains
from eventstore.server.reactions.other_shards import OtherShards
from eventstore.server.reactions.reaction_handlers import parking_routes, reaction_routes
from eventstore.server.reactions.reaction_metrics import reaction_feature
from eventstore.server.reactions.reaction_runner import ReactionRunner
from eventstore.server.reactions.with_publications import WithPublications
from eventstore.server.reports import Reports
from eventstore.server.requests.appends import AppendBatcher
from eventstore.server.requests.commands import CommandBatcher, CommandReplies, WaitingCommands
from eventstore.server.requests.dispatch import Dispatch
from eventstore.server.requests.joint_commits import JointCommitBatcher
from eventstore.server.requests.leadership import Leadership
from eventstore.server.requests.map_requests import MapRequests
from eventstore.server.requests.owned_slots import OwnedSlots, appends_of, commands_of
from eventstore.server.requests.place import ServedShard
from eventstore.server.requests.precedence import Precedence
from eventstore.server.requests.read_requests import ReadRequests
from eventstore.server.requests.subscriptions import ServedSubscriptions
from eventstore.server.shard_layout import ServedLayout, SplitPause
from eventstore.server.subjects import Subjects, master_keys
from eventstore.server.timers.timer_metrics import timer_feature
from eventstore.server.timers.timer_runner import RunningTimers, TimerOperators, TimerRunner, TimerSettings, timer_runner
from eventstore.server.verification.verified_files import verified_folders
from eventstore.server.verification.verifying import Verifying
from eventstore.settings.server import ServerSettings
from eventstore.store.data_folder import ShardIdentity
from eventstore.store.embedded import EmbeddedStore
from eventstore.store.open_store import open_store
from eventstore.store.store_stats import STORE_METRICS
from eventstore.tags import check_subject

REACTIONS: Final = "reactions.json"
PROJECTIONS: Final = "projections.json"
TIMERS: Final = "timers.index"


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
    layout: ServedLayout
    reports: Reports
    security: Security
    slots: OwnedSlots | None
    publishing: Publishing
    verifying: Verifying
    subjects: Subjects
    features: list[Feature]
    stopping: trio.Event

    def stop(self) -> None:
        self.stopping.set()


async def serve(
    settings: ServerSettings,
    shard: ShardIdentity | None = None,
    known: ClusterMap | None = None,
    *,
    leadership: Leadership | None = None,
    security: Security | None = None,
    task_status: trio.TaskStatus[Server] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serves until `Server.stop` is called. Wrong settings are reported before the data folder is created.

    `shard`: it serves this shard of a cluster, of which it has the map `known`; with None a store of its own. `leadership`: it
    leads a shard that has replicas. `security`: of the process; None: it is made of the settings.

    Raises:
        DomainRefused: the domain cannot be loaded.
        FolderRefused, Corrupt: the data folder cannot be opened, or an address cannot be bound.
        Poisoned: the disk failed while serving.
    """
    log = get_logger("eventstore.server")
    raise_descriptor_limit()
    domain = Domain() if settings.domain is None else load(settings.domain)
    refuse_asyncio(domain, reactions=True)
    check_publish(settings.publish, domain, with_broker=settings.broker)
    check_keep_commands(settings.keep_commands, with_broker=settings.broker)
    security = security or Security(settings)
    check_http_api(settings)
    master_keys(settings.subject_key_file)
    alarms_of(settings)  # to name what is wrong before the folder is made
    if settings.http is not None:
        bind(settings.http, "http").close()
    with bind(settings.listen) as listener:
        await _serve(settings, domain, listener, security, shard, known, leadership, task_status)
    log.info("stopped")


async def _serve(
    settings: ServerSettings,
    domain: Domain,
    listener: socket.socket,
    security: Security,
    shard: ShardIdentity | None,
    known: ClusterMap | None,
    leads: Leadership | None,
    task_status: trio.TaskStatus[Server],
) -> None:
    log = get_logger("eventstore.server")
    yield_often()  # from here on: a leader that begins reads on threads while clients wait
    epoch, events = (None, None) if leads is None else (leads.epoch, leads.events)
    async with open_store(settings.data, settings.store_settings, shard=shard, epoch=epoch, replication=events) as store:
        at = ServedShard(shard, known or single_map(store.opened.uuid.bytes), leads)
        async with (
            broker_beside(settings, leads, at.one_of_several) as broker,
            _listening(settings, store, broker, domain, listener, security, at) as server,
        ):
            calm_collector()
            log.info(
                "serving",
                version=__version__,
                address=server.address,
                http=server.http_address,
                domain=settings.domain,
                access=security.said,
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
            await wind_down(server.features, server.gate, settings.stop_timeout_s)
    if store.engine.failed is not None:
        raise store.engine.failed


@asynccontextmanager
async def _listening(
    settings: ServerSettings,
    store: EmbeddedStore,
    broker: Broker | None,
    domain: Domain,
    listener: socket.socket,
    security: Security,
    place: ServedShard,
) -> AsyncIterator[Server]:
    leads = place.leadership
    if leads is not None:
        assert broker is not None, "a shard with replicas has a broker"
        await leads.begin(store, broker)
    files = None if leads is None else leads.files
    async with trio.open_nursery() as nursery:
        gate = Gate(listener, gate_limits(settings), security.make_connection)
        access, order = embedded_access(store, nursery), ArrivalOrder()
        waiting = WaitingCommands(gate, settings.waiting_commands_bytes_max, settings.mailbox_options.waiting_bytes_max)
        replies = CommandReplies(gate, access.find_commands, waiting)
        maps = MapRequests(gate, place.known)
        slots = place.slots(maps)
        snapshots = snapshots_of(settings, domain, settings.data / SNAPSHOTS, str(store.opened.uuid))
        runtime = DomainRuntime(
            domain,
            access.read_events,
            snapshots,
            None if slots is None else slots.across,
            access.decisions(settings.mailbox_options),
        )
        kept = kept_commands(settings.keep_commands, broker, lambda: store.engine.visible_sequence)
        answer = replies.answer if kept is None else kept.after(replies.answer)
        mailboxes = make_mailboxes(runtime, access, settings.mailbox_options, answer)
        await nursery.start(mailboxes.run)
        door = security.doorkeeper(gate, store)
        appends = appends_of(slots, door)(gate, mailboxes, replies, order)
        commands = commands_of(slots, door)(gate, domain, mailboxes, replies, waiting, order)
        layout = ServedLayout(store.engine, lambda: maps.current.version)
        joint = JointCommitBatcher(gate, store, mailboxes, waiting, order, slots, layout, nursery)
        reads = ReadRequests(gate, store.engine, nursery, layout)
        subscriptions = ServedSubscriptions(gate, store.committer, nursery, layout)
        host, port = listener.getsockname()[:2]
        others = None if slots is None else OtherShards(slots, host, port, security)
        settings_of_timers = TimerSettings(store, domain, slots)
        own = OwnCommands(domain, mailboxes, access.find_commands, settings_of_timers.set, others)
        reactions = ReactionRunner(store, settings.data / REACTIONS, domain, own.send, own.set_timer, files)
        layout.moved.append(lambda _: reactions.begin_again())
        timers = _timers(settings, store, own, slots, leads)
        settings_of_timers.told = timers.timers.hint
        layout.moved.append(lambda _: timers.begin_again())
        may_answer = trio.lowlevel.checkpoint if slots is None else SplitPause(layout, maps, slots).over
        number = None if place.shard is None else place.shard.shard
        service = None if broker is None else BrokerService(gate, broker, nursery, may_answer, number)
        publishing = publishing_of(store, broker, settings.publish, domain, settings.data, files)
        layout.moved.append(lambda _: publishing.begin_again())
        subjects = Subjects(
            store, settings.data, master_keys(settings.subject_key_file), files, check_subject if slots is None else slots.check
        )
        await subjects.begin()
        verifying = Verifying(settings, verified_folders(store, broker))
        backups = Backups(gate, lambda: _cut(settings, store, broker), settings.data / BACKUPS)

        def end_turn() -> None:
            if order.collecting is not None:
                order.end_turn()
            if service is not None and service.messages.batches:
                service.messages.end_turn()

        precedence = Precedence(gate, store.committer, waiting, replies, end_turn)
        reports = Reports(lambda: store.engine.failed is None and not appends.stopping, reactions)
        operators = reaction_routes(gate, nursery, WithPublications(reactions, publishing))
        projections = ConnectedProjections(gate, store.engine, store.waits, settings.data / PROJECTIONS)
        layout.moved.append(projections.moved)
        chains = FollowedChains(gate, nursery, reactions)
        layout.moved.append(chains.moved)
        alarms = alarms_of(settings)
        alarms.source = source_of(host, port, place.shard)
        alarms.keep_silences(settings.data / SILENCES)
        features = [
            Feature(metrics=[MetricSource(STORE_METRICS, lambda: store)]),
            Feature(metrics=[MetricSource(MAILBOX_METRICS, mailboxes.stats)], drain=mailboxes.stop),
            *(() if snapshots is None else (snapshot_feature(snapshots),)),
            waiting.feature,
            appends.feature,
            commands.feature,
            joint.feature,
            precedence.feature,
            replies.feature,
            *(() if kept is None else (kept.feature,)),
            Feature(drain=lambda _: store.committer.drain()),
            maps.feature,
            reads.feature,
            subscriptions.feature,
            reaction_feature(reactions, operators | parking_routes(gate, nursery, store), reactions.run),
            Feature(routes=routes_of(settings_of_timers, gate, DeferredReplies(gate, nursery))),
            _timer_feature(gate, nursery, [timers] if domain.handlers else []),
            backups.feature,
            projections.feature,
            chains.feature,
            subjects.feature(gate, nursery),
            process_feature(settings.data),
            *(() if service is None else (service.feature, publishing_feature(publishing))),
            verifying.feature,
            Feature(run=security.run),
            *security.features(door),
            *(() if others is None else (Feature(run=others.run),)),
            alarm_feature(alarms, alarm_routes(gate, alarms), lambda: alarms.run(reports.figures)),
        ]
        routes = routes_of_all(features)
        if slots is not None:
            routes = slots.guard(routes)
        if service is not None and door is not None:
            door.has_topic, door.changes = service.has_topic, service.changes
        node = None if broker is None else broker.opened.node
        if leads is not None:
            gate.may_send = leads.may_send
            leads.send_with(gate.flush)
        seat = place.seat(maps, layout)
        dispatch = Dispatch(
            gate, store.opened.uuid, settings.requests_max, routes, reports.stats, node, seat, access.durability, door
        )
        precedence.intercept(dispatch.routes)
        reports.add(*features, dispatch.feature)
        about = console_subject(settings, security, (host, port), reports.health, f"{host}:{port}", domain=domain)
        with ExitStack() as stack:
            http_address = None
            if settings.http is not None:
                from eventstore.server.http import http_server  # here: its libraries take 3 MB

                served = http_server(settings.http, reports.application(), reports.health, security, about)
                http_address = stack.enter_context(served)
            listen(listener, settings.listen)
            committers = () if broker is None else (broker.committer,)
            begin(features, nursery, gate, dispatch.handle, end_turn, ServerBacklog(store.committer, mailboxes, *committers))
            address = f"{security.scheme}://{host}:{port}"
            told = maps, layout, reports, security, slots, publishing, verifying, subjects
            yield Server(
                address, http_address, store, service, gate, appends, commands, mailboxes, *told, features, trio.Event()
            )
            nursery.cancel_scope.cancel()


def _timers(
    settings: ServerSettings, store: EmbeddedStore, own: OwnCommands, slots: OwnedSlots | None, leads: Leadership | None
) -> TimerRunner:
    runner = timer_runner(
        store,
        own.send,
        settings.data / TIMERS,
        difference_us=(lambda: None) if leads is None else leads.clock_difference_us,
        owns=None if slots is None else slots.owns,
        is_told=True,
    )
    told_of_settings.add(runner.timers)
    return runner


def _timer_feature(gate: Gate, nursery: trio.Nursery, timers: list[TimerRunner]) -> Feature:
    """`timers`: none if there is no domain, and a worker runs them."""
    running = RunningTimers(timers)
    routes = routes_of(TimerOperators(running), gate, DeferredReplies(gate, nursery))
    return timer_feature(running, routes, timers[0].run if timers else None)


def _cut(settings: ServerSettings, store: EmbeddedStore, broker: Broker | None) -> BackupCut:
    """Returns up to where both logs are readable. The messages come first: none is of an event after the cut."""
    message = 0 if broker is None else broker.engine.visible_number
    sequence = store.engine.visible_sequence
    folder, now_us = str(settings.data.absolute()), time.time_ns() // 1_000
    return BackupCut(folder, str(store.opened.uuid), sequence, message, now_us)
