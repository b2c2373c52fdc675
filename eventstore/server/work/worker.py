"""Runs a worker: a domain's command mailboxes in a separate process, on a remote store, or on all shards of a cluster.

It listens as a server does, but takes only commands (SEND). Several workers may handle the same aggregates by accident: their
changes then meet at the store as version conflicts, and the mailboxes handle the commands again.
"""

from __future__ import annotations

import contextlib
import socket
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

from eventstore import __version__
from eventstore.alarms.silences import SILENCES
from eventstore.client.aio.store import NetworkStore
from eventstore.client.aio.wait_for_server import wait_for_server
from eventstore.domain.asyncio_calls import refuse_asyncio
from eventstore.domain.domain import Domain
from eventstore.domain.import_path import load
from eventstore.domain.runtime import DomainRuntime
from eventstore.errors import EventStoreError, InvalidArgument
from eventstore.metrics import MetricSource
from eventstore.protocol.timer_info import TimerEvent
from eventstore.protocol.timer_requests import SetTimer
from eventstore.server.access.security import Security
from eventstore.server.aggregate_snapshots import snapshot_feature, snapshots_of
from eventstore.server.alarms.alarm_handlers import alarm_routes, source_of
from eventstore.server.alarms.known_figures import alarms_of
from eventstore.server.alarms.reported_alarms import alarm_feature
from eventstore.server.bootstrap import (
    bind,
    calm_collector,
    check_checkpoint_folder,
    gate_limits,
    held_checkpoint,
    held_snapshots,
    listen,
    raise_descriptor_limit,
    stop_on_signals,
    yield_often,
)
from eventstore.server.broker.handlers import routes_of
from eventstore.server.feature import Feature, begin, routes_of_all, wind_down
from eventstore.server.logs import get_logger
from eventstore.server.mailbox_metrics import MAILBOX_METRICS
from eventstore.server.mailbox_wiring import ArrivalOrder, make_mailboxes
from eventstore.server.net.budgets import NoBacklog
from eventstore.server.net.deferred_replies import DeferredReplies
from eventstore.server.net.gate import Gate
from eventstore.server.outbox.publishing_metrics import publishing_feature
from eventstore.server.own_commands import OwnCommands
from eventstore.server.process_metrics import process_feature
from eventstore.server.reactions.reaction_handlers import reaction_routes
from eventstore.server.reactions.reaction_metrics import reaction_feature
from eventstore.server.reactions.reaction_runner import ReactionRunner
from eventstore.server.reactions.with_publications import WithPublications
from eventstore.server.reports import Reports
from eventstore.server.requests.commands import CommandReplies, WaitingCommands
from eventstore.server.requests.dispatch import Dispatch
from eventstore.server.requests.owned_slots import commands_of
from eventstore.server.timers.timer_metrics import timer_feature
from eventstore.server.timers.timer_runner import ForwardedSettings, TimerOperators
from eventstore.server.work.remote_access import remote_access
from eventstore.server.work.shard_mailboxes import ShardMailboxes
from eventstore.server.work.shard_reactions import ShardReactions
from eventstore.server.work.told_worker import tell_of_worker
from eventstore.server.work.worked_shards import WorkedShards, least_of
from eventstore.server.work.worker_publishing import WorkerPublishing
from eventstore.server.work.worker_timers import WorkerTimers
from eventstore.settings.server import ServerSettings


@dataclass(slots=True)
class Worker:
    """A running worker. `stop` ends it in order. `store_lost`: why its store cannot be used any more."""

    address: str
    http_address: str | None
    gate: Gate
    security: Security
    features: list[Feature]
    stopping: trio.Event
    store_lost: EventStoreError | None = None

    def stop(self) -> None:
        self.stopping.set()

    def give_up(self, error: EventStoreError) -> None:
        """Stops with an error, because no later attempt to reach the store can succeed."""
        if self.store_lost is None:
            self.store_lost = error
            get_logger("eventstore.worker").error("stopping: another store answers at its address", error=error.message)
        self.stop()


async def work(
    settings: ServerSettings,
    store_address: str,
    checkpoint: Path | None,
    wait_s: float = 0.0,
    snapshots: Path | None = None,
    *,
    task_status: trio.TaskStatus[Worker] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Handles commands until `Worker.stop` is called.

    `checkpoint`: the file that keeps the position of the domain's reactions, one for each shard if there are several; with None
    they do not run here, and nothing is published. `wait_s`: how long to wait for a store that is not up yet. `snapshots`: the
    folder for snapshots of aggregates, of this worker alone; with None there are none.

    Raises:
        DomainRefused, InvalidArgument: no domain is given, or it cannot be loaded.
        ConnectionLost: the store cannot be reached within `wait_s` at the start, or another store answers at its address later.
        UnsupportedVersion: the store uses another version of the protocol.
        FolderRefused: another worker has the checkpoint, or the folder for snapshots.
    """
    if settings.domain is None:
        raise InvalidArgument("a worker needs a domain; name it with --domain MODULE:NAME", field="domain")
    if settings.http_api:
        raise InvalidArgument("http_api is on, and a worker does not serve it: switch it on at the server", field="http_api")
    if settings.keep_commands is not None:
        raise InvalidArgument(
            "keep_commands is set, and a worker keeps none: send commands to a server that has the domain",
            field="keep_commands",
        )
    check_checkpoint_folder(checkpoint)
    domain = load(settings.domain)
    refuse_asyncio(domain, reactions=checkpoint is not None)
    raise_descriptor_limit()
    log = get_logger("eventstore.worker")

    def on_waiting(error: EventStoreError) -> None:
        log.warning("waiting for the store", error=error.message, wait_s=wait_s)

    security = Security(settings, own_file=False)
    connecting = wait_for_server(
        store_address,
        name="eventstore-worker",
        wait_s=wait_s,
        on_waiting=on_waiting,
        ssl_context=security.own_context,
        token=security.own_token,
    )
    with held_checkpoint(checkpoint), held_snapshots(snapshots), bind(settings.listen) as listener:  # before waiting
        async with (
            connecting as store,
            _working(settings, domain, store, checkpoint, snapshots, listener, security) as worker,
        ):
            log.info("working", version=__version__, address=worker.address, http=worker.http_address, store=store_address)
            calm_collector()
            yield_often()
            task_status.started(worker)
            await worker.stopping.wait()
            log.info("stopping", connections=len(worker.gate.connections))
            await wind_down(worker.features, worker.gate, settings.stop_timeout_s)
    log.info("stopped")
    if worker.store_lost is not None:
        raise worker.store_lost


@asynccontextmanager
async def _working(
    settings: ServerSettings,
    domain: Domain,
    store: NetworkStore,
    checkpoint: Path | None,
    snapshot_folder: Path | None,
    listener: socket.socket,
    security: Security,
) -> AsyncIterator[Worker]:
    async with trio.open_nursery() as nursery:
        gate, order = Gate(listener, gate_limits(settings), security.make_connection), ArrivalOrder()
        shards = WorkedShards(store)
        access = {number: remote_access(store, nursery, lambda error: worker.give_up(error)) for number in shards.sets}
        find_commands = next(iter(access.values())).find_commands
        waiting = WaitingCommands(gate, settings.waiting_commands_bytes_max, settings.mailbox_options.waiting_bytes_max)
        replies = CommandReplies(gate, find_commands, waiting)
        snapshots = snapshots_of(settings, domain, snapshot_folder, str(uuid.UUID(bytes=store.store_uuid)))
        runtimes = {
            number: DomainRuntime(domain, each.read_events, snapshots, shards.across, each.decisions(settings.mailbox_options))
            for number, each in access.items()
        }
        sets = {
            number: make_mailboxes(runtimes[number], each, settings.mailbox_options, replies.answer)
            for number, each in access.items()
        }
        mailboxes = ShardMailboxes(shards.owner, sets) if len(sets) > 1 else next(iter(sets.values()))
        door = security.doorkeeper(gate)
        commands = commands_of(None, door)(gate, domain, mailboxes, replies, waiting, order)
        await nursery.start(mailboxes.run)

        async def set_timer(request: SetTimer) -> TimerEvent:
            return await store._call_owner(request.aggregate_id, request)

        own = OwnCommands(domain, mailboxes, find_commands, set_timer)
        reactions = _reactions(domain, checkpoint, shards, own)
        publishing = _publishing(domain, checkpoint, store)

        reports = Reports(lambda: not commands.stopping, reactions)
        uuid_of_store, most = uuid.UUID(bytes=store.store_uuid), settings.requests_max
        durability = least_of([each.durability for each in access.values()])
        alarms = alarms_of(settings)
        if checkpoint is not None:  # without it a worker keeps nothing
            alarms.keep_silences(checkpoint.with_name(f"{checkpoint.stem}-{SILENCES}"))
        host, port = listener.getsockname()[:2]

        async def drain(seconds: float) -> None:
            await mailboxes.stop(seconds if worker.store_lost is None else 0)

        alarms.source = f"worker {source_of(host, port)}"
        features = [
            Feature(metrics=[MetricSource(MAILBOX_METRICS, mailboxes.stats)], drain=drain),
            *(() if snapshots is None else (snapshot_feature(snapshots),)),
            waiting.feature,
            commands.feature,
            replies.feature,
        ]
        if reactions is not None:
            operators = reactions if publishing is None else WithPublications(reactions, publishing)
            features.append(reaction_feature(reactions, reaction_routes(gate, nursery, operators), reactions.run))
        deferred = DeferredReplies(gate, nursery)
        features.append(Feature(routes=routes_of(ForwardedSettings(set_timer, domain), gate, deferred)))
        if checkpoint is not None:
            timers = WorkerTimers(store, checkpoint, own.send)
            features.append(timer_feature(timers, routes_of(TimerOperators(timers), gate, deferred), timers.run))
        if publishing is not None:
            features.append(publishing_feature(publishing))
        features += [
            shards.feature,
            Feature(run=partial(tell_of_worker, str(settings.domain), shards, reactions)),
            process_feature(None),
            Feature(run=security.run),
            *security.features(door),
            alarm_feature(alarms, alarm_routes(gate, alarms), lambda: alarms.run(reports.figures)),
        ]
        dispatch = Dispatch(gate, uuid_of_store, most, routes_of_all(features), reports.stats, durability=durability, door=door)
        reports.add(*features, dispatch.feature)
        with contextlib.ExitStack() as stack:
            listen(listener, settings.listen)
            http_address = None
            if settings.http is not None:
                from eventstore.server.http import http_server  # here: its libraries take 3 MB

                http_address = stack.enter_context(http_server(settings.http, reports.application(), reports.health, security))
            worker = Worker(f"{security.scheme}://{host}:{port}", http_address, gate, security, features, trio.Event())
            begin(features, nursery, gate, dispatch.handle, order.end_turn, NoBacklog())
            yield worker
        nursery.cancel_scope.cancel()


async def run(
    settings: ServerSettings,
    store_address: str,
    checkpoint: Path | None,
    wait_s: float = 0.0,
    snapshots: Path | None = None,
) -> None:
    """Runs `work` until a signal; this is `eventstore work`."""
    worker: Worker | None = None

    async def stop() -> None:
        await stopping.wait()
        if worker is None:  # it still waits for its store, and has nothing to finish
            nursery.cancel_scope.cancel()
        else:
            worker.stop()

    async with trio.open_nursery() as nursery:
        stopping = trio.Event()
        await nursery.start(stop_on_signals, stopping, lambda: None if worker is None else worker.security.reload())
        nursery.start_soon(stop)
        worker = await nursery.start(work, settings, store_address, checkpoint, wait_s, snapshots)


def _publishing(domain: Domain, checkpoint: Path | None, store: NetworkStore) -> WorkerPublishing | None:
    if domain.publications and checkpoint is not None:
        return WorkerPublishing(store, domain, checkpoint)
    if domain.publications:
        get_logger("eventstore.worker").warning(
            "what the domain publishes is not published here; start one worker with --checkpoint FILE to publish it",
            topics=", ".join(sorted(domain.publications)),
        )
    return None


def _reactions(
    domain: Domain,
    checkpoint: Path | None,
    shards: WorkedShards,
    own: OwnCommands,
) -> ReactionRunner | ShardReactions | None:
    if checkpoint is not None and shards.store._router is None:
        return ReactionRunner(shards.store, checkpoint, domain, own.send, own.set_timer)
    if checkpoint is not None:

        def runner(store: NetworkStore, path: Path, suffix: str) -> ReactionRunner:
            return ReactionRunner(store, path, domain, own.send, own.set_timer, suffix=suffix)

        return ShardReactions(shards.store, checkpoint, domain.reactions, runner)
    if domain.reactions:
        get_logger("eventstore.worker").warning(
            "the domain's reactions do not run here; start one worker with --checkpoint FILE to run them",
            reactions=", ".join(sorted(domain.reactions)),
        )
    return None
