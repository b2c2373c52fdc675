"""The process of a replica: follows the leader of its shard, or leads it, until its node ends the channel."""

from __future__ import annotations

import logging
import os
import secrets
import sys
from functools import partial
from typing import Final, NoReturn

import trio

from eventstore.chunks.documents import Tree
from eventstore.chunks.files import OsFiles
from eventstore.errors import EventStoreError, to_wire
from eventstore.metrics import MetricSource, read_stats
from eventstore.server.bootstrap import bind, calm_collector, stop_on_signals, until
from eventstore.server.feature import Feature
from eventstore.server.logs import get_logger
from eventstore.server.serve import serve
from eventstore.server.verification.verifying import VERIFYING_METRICS, Verifying
from eventstore.settings.server import ServerSettings
from eventstore.store.data_folder import ShardIdentity
from eventstore.store.opening import note_shard
from eventstore_cluster.channel import Channel
from eventstore_cluster.registry.etcd.errors import OutcomeUnknown, RegistryUnavailable
from eventstore_cluster.registry.etcd.etcd_registry import EtcdRegistry
from eventstore_cluster.registry.etcd.gateway import Gateway
from eventstore_cluster.registry.etcd.lease import Lease, now
from eventstore_cluster.registry.etcd.lease_keeping import keep_renewed
from eventstore_cluster.registry.replica_keys import ReplicaKey
from eventstore_cluster.registry.replicated_keys import LeftKey
from eventstore_cluster.replica.limits import limits_for
from eventstore_cluster.replica.registry_state import Leader, Seat
from eventstore_cluster.replica.replica import HANDED_OVER, Replica
from eventstore_cluster.replication.audited_state import audit_until
from eventstore_cluster.replication.cloning.preparation import Cloning, cloned
from eventstore_cluster.replication.driver import ReplicaDriver
from eventstore_cluster.replication.follower_sorting import sort_committed
from eventstore_cluster.replication.links import Links
from eventstore_cluster.replication.log_split import LogSplit
from eventstore_cluster.replication.logs.follower_logs import FollowerLogs
from eventstore_cluster.replication.lost_files import LostFiles
from eventstore_cluster.replication.mending import FinalFiles, OtherFiles, give_way_to_rot
from eventstore_cluster.replication.peer_frames import PeerHello
from eventstore_cluster.replication.replica_metrics import REPLICA_METRICS, Leads, ReplicaCollector
from eventstore_cluster.replication.run import ReplicaRun, key_of
from eventstore_cluster.replication.shard_registry import ShardRegistry
from eventstore_cluster.shard_process import ShardProcess, run_process
from eventstore_cluster.shard_start import ShardStart, plain

_RETRY_S: Final = 0.5
_REVOKE_S: Final = 1.0
_SAY_S: Final = 0.5
_TELL_S: Final = 1.0
_SYNC_MAX_S: Final = 2.0
_LOOK_S: Final = 0.5
_ABANDONED_LOOKS: Final = 3
STOPPED: Final = "it was stopped"
DESERTED: Final = "its node was killed, or crashed"
_log = get_logger("eventstore.cluster")


class ReplicaProcess(ShardProcess):
    """What the node asks of the replica, before and while it leads or follows. `ShardProcess` is the same for a shard without
    replicas.
    """

    def __init__(self, channel: Channel, start: ShardStart, settings: ServerSettings) -> None:
        super().__init__(channel, start, settings)
        assert start.replica is not None
        self._replica = start.replica
        self._driver: ReplicaDriver | None = None
        self._news = trio.Event()
        self._identity = start.identity
        self._verifying: Verifying | None = None
        self._follows: list[MetricSource[Verifying]] = []

    async def run(self) -> None:
        """Follows or leads until the channel ends, or on SIGTERM."""
        async with trio.open_nursery() as beside:
            await beside.start(stop_on_signals, self._stopping, self._reload)
            beside.start_soon(self._security.run)
            beside.start_soon(self._follow)
            await self._wait_for_folder()
            async with Gateway(self._replica.etcd) as gateway:
                lease = await self._lease(gateway)
                if lease is not None:
                    try:
                        async with trio.open_nursery() as nursery:
                            nursery.start_soon(self._keep, gateway, lease)
                            await self._replicate(gateway, lease)
                            nursery.cancel_scope.cancel()
                    finally:
                        with trio.move_on_after(_REVOKE_S, shield=True):
                            await self._revoke(gateway, lease)
            beside.cancel_scope.cancel()

    async def _lease(self, gateway: Gateway) -> Lease | None:
        """Returns the lease of this run; None if the process is stopped before etcd gives one."""
        said = False
        while not self._stopping.is_set():
            try:
                lease = await Lease.grant(gateway, self._replica.lease_s)
            except (RegistryUnavailable, OutcomeUnknown) as error:
                if not said:
                    _log.warning("waiting for the registry", error=error.message)
                said = True
                with trio.move_on_after(_RETRY_S):
                    await self._stopping.wait()
            else:
                await self._channel.send({"lease": str(lease.id)})
                return lease
        return None

    async def _keep(self, gateway: Gateway, lease: Lease) -> None:
        """Renews the lease from its beginning on, as long as the disk answers (R11)."""

        def refuses() -> str | None:
            hangs = self._driver is not None and self._driver.sync_takes_s() > _SYNC_MAX_S
            return "the disk does not answer" if hangs else None

        await keep_renewed(gateway, lease, refuses)
        if self._driver is None:
            self._end("the lease of this process ran out before it joined", False)
        self._driver.do(self._driver.replica.lease_lost())

    async def _revoke(self, gateway: Gateway, lease: Lease) -> None:
        """Gives the lease back; a leader that was told to stop says why first: another may be elected at once."""
        driver = self._driver
        if driver is not None and driver.elected.is_set() and self._stopping.is_set():
            with trio.move_on_after(_SAY_S):  # clients wait for the lease
                reason = DESERTED if self._deserted else STOPPED
                await driver.run_of.registry.say_left(LeftKey(driver.epoch, self._replica.node, reason))
        try:
            await lease.revoke(gateway)
        except EventStoreError as error:  # it runs out
            _log.warning("the lease is not revoked", error=error.message)

    async def _replicate(self, gateway: Gateway, lease: Lease) -> None:
        own, identity, run, incarnation = self._replica, self._start.identity, secrets.token_hex(8), None
        registry = ShardRegistry(EtcdRegistry(gateway, own.registry), identity.shard, lease, run)
        with bind(own.peers, "peers") as listener:
            host, port = own.host or listener.getsockname()[0], listener.getsockname()[1]
            if own.parent is not None:
                above, say = self._settings.data.parent / f"shard-{own.parent}", partial(self._present, registry)
                clone = Cloning(own.node, run, f"{host}:{port}", lease.id)
                async with until(self._stopping):
                    identity, incarnation = await cloned(above, self._settings, identity, clone, registry, say)
                if self._stopping.is_set():
                    return
            self._identity = identity
            hello = PeerHello(identity.cluster.bytes, identity.shard, own.node, run)
            asking = OtherFiles(Links(listener, hello, self._security), registry, own.node)
            fetched = await LostFiles(OsFiles(), self._settings.data, identity).fetch(registry, asking, self._stopping)
            if self._stopping.is_set():
                return
            logs = await trio.to_thread.run_sync(FollowerLogs, OsFiles(), self._settings, identity, own.node, incarnation)
            me = Leader(Seat(own.node, logs.incarnation.token), run, f"{host}:{port}")
            machine = Replica(
                me,
                logs.incarnation.earlier,
                logs.tails,
                logs.last_crcs,
                limits=limits_for(self._settings.store_settings.file_size_bytes),
                new_nonce=lambda: secrets.token_hex(8),
                now=now(),
                candidate_from=now() + (own.lease_s if own.sit_out else 0.0),
                known=own.known,
            )
            await self._present(registry, key_of(machine, logs))
            ours = FinalFiles(logs, lambda: self._driver and self._driver.committed, partial(registry.says_in_sync, me.member))
            links = Links(listener, hello, self._security, ours.read)
            others = OtherFiles(links, registry, own.node)
            self._verifying = verifying = Verifying(self._settings, ours.folders, others)
            verifying.note_mended(fetched)
            self._follows = [MetricSource(VERIFYING_METRICS, lambda: verifying)]
            shared = ReplicaRun(machine, logs, registry, lease, gateway.clock)
            driver = self._driver = ReplicaDriver(shared, links, self._end, self._wake)
            async with trio.open_nursery() as nursery:
                await nursery.start(driver.run)
                nursery.start_soon(self._tell_role, driver)
                nursery.start_soon(self._stop_in_time, driver, gateway, lease)
                calm_collector()  # once more when it leads: then little is left to look through
                await self._follow_until_elected(driver, verifying)
                if driver.elected.is_set() and not self._stopping.is_set():
                    await self._lead(driver, others)
                nursery.cancel_scope.cancel()
            if not driver.elected.is_set():
                await trio.to_thread.run_sync(logs.close)

    async def _present(self, registry: ShardRegistry, key: ReplicaKey) -> None:
        """Tells the registry of this replica, before anything else can end it."""
        while True:
            if self._stopping.is_set() or await registry.present(self._replica.node, key):
                return
            await trio.sleep(_RETRY_S)

    async def _follow_until_elected(self, driver: ReplicaDriver, verifying: Verifying) -> None:
        async with until(driver.elected, self._stopping), trio.open_nursery() as nursery:
            nursery.start_soon(sort_committed, driver, self._settings.data)
            nursery.start_soon(verifying.run)

    def _owned(self, driver: ReplicaDriver) -> ShardIdentity:
        """Returns the shard's identity, by the registry as it was read last, or when this replica was elected."""
        registry, own = driver.run_of.registry, self._identity
        return own if registry.key is None else registry.key.identity(own.cluster, own.shard, registry.format)

    def _take_map(self, text: str) -> None:
        super()._take_map(text)
        self._wake()

    async def _take_slots(self, driver: ReplicaDriver) -> None:
        """Notes that the shard was split, here and for all who read its folder: what it hands out follows from that. And that
        the format of the cluster was raised: a leader begins its next file in it.
        """
        owned = self._owned(driver)
        if owned == self._identity or not set(owned.splits).issubset(self._newest.splits):  # the map that says so comes first
            return
        self._identity = owned
        if self._server is not None and owned.slot_filter is not None:
            self._server.store.engine.slot_filter = owned.slot_filter
        await trio.to_thread.run_sync(note_shard, OsFiles(), self._settings.data, owned)
        if self._server is not None:
            self._server.store.engine.raise_format(owned.format)

    async def _lead(self, driver: ReplicaDriver, others: OtherFiles) -> None:
        leadership = driver.open_leadership()
        async with trio.open_nursery() as nursery:
            serving = partial(serve, leadership=leadership, security=self._security)
            self._server = server = await nursery.start(serving, self._settings, self._owned(driver), self._newest)
            server.maps.publish(self._newest)
            leads = Leads(driver.replica, leadership)
            server.reports.add(
                Feature(
                    metrics=[MetricSource(REPLICA_METRICS, lambda: leads)],
                    collectors=[ReplicaCollector(leadership)],
                    attention=lambda: leadership.attention,
                )
            )
            driver.serves(LogSplit(server, self._settings.data, driver.run_of.registry))
            nursery.start_soon(give_way_to_rot, driver, server.verifying, others, self._stopping)
            await driver.say_serving(self._advertised(server.address.partition("://")[2]))
            await self._channel.send({"serving": server.address})
            await audit_until(self._stopping, self._security, driver.replica, self._replica.node)
            driver.stop_serving()

    def _advertised(self, address: str) -> str:
        """Returns where others reach what listens at this address."""
        return f"{self._replica.host}:{address.rpartition(':')[2]}" if self._replica.host else address

    async def _stop_in_time(self, driver: ReplicaDriver, gateway: Gateway, lease: Lease) -> None:
        """Ends a leader that cannot stop in order, because its followers are away: what waits is never answered."""
        await self._stopping.wait()
        if not driver.elected.is_set():
            return
        with trio.move_on_after(self._settings.stop_timeout_s + _REVOKE_S if driver.opened else 0.0):
            abandoned = 0
            while abandoned < _ABANDONED_LOOKS:  # then no leader will commit it
                await trio.sleep(_LOOK_S)
                abandoned = abandoned + 1 if driver.replica.is_abandoned else 0
        with trio.move_on_after(_REVOKE_S):
            await self._revoke(gateway, lease)
        _log.warning("stopped, though not everything is committed: the next leader decides")
        os._exit(0)

    # what the node is told

    def _wake(self) -> None:
        self._news.set()

    async def _tell_role(self, driver: ReplicaDriver) -> None:
        told: Tree = {}
        while True:
            with trio.move_on_after(_TELL_S):  # what only time changes
                await self._news.wait()
            self._news = trio.Event()
            await self._take_slots(driver)
            report = {name: value for name, value in driver.report().items() if name not in ("ends", "lag_s")}
            report["attention"] = self._attention(driver)
            if report != told:
                told = report
                await self._channel.send({"following": report})

    async def health(self) -> Tree:
        """Returns also its role; it is healthy while it serves, or follows a leader. `attention` ends what was told last."""
        driver, served = self._driver, await super().health()
        if driver is None:
            return {"healthy": False}
        report, figures = driver.report(), served or read_stats(self._follows)
        attention = self._attention(driver) or served.get("attention")
        return {"healthy": report["follows"], **figures, **report, "attention": attention}

    def _attention(self, driver: ReplicaDriver) -> str | None:
        return driver.attention(None if self._verifying is None else self._verifying.attention)

    def metrics(self) -> bytes | None:
        """Returns the text of /metrics, on any thread. A follower has a few metrics of its own."""
        if self._server is not None or not self._follows:
            return super().metrics()
        from eventstore.server.exposition import text_of  # here: as in `Reports.metrics`

        return text_of(self._follows)

    def _end(self, reason: str, sit_out: bool) -> NoReturn:
        """Ends the process at once: nothing is answered after that."""
        led = self._driver is not None and self._driver.elected.is_set()
        asked_for = reason == HANDED_OVER or self._stopping.is_set()
        _log.log(logging.INFO if asked_for else logging.ERROR, "this run of the replica ends", reason=reason)
        if sit_out:
            self._channel.send_at_once({"sit_out": True})
        if self._driver is not None and led:
            leading, state = self._driver.replica.leading, self._driver.replica.registrar.state
            spare = reason == HANDED_OVER and leading is not None and state.has_spare(leading.keeping_up(now()))
            self._channel.send_at_once({"left": reason, "spare": spare})
        else:
            self._channel.send_at_once({"failed": [plain(each) for each in to_wire(EventStoreError(reason))]})
        sys.stderr.flush()
        os._exit(0 if led else 1)


def main() -> int:
    return run_process(ReplicaProcess)
