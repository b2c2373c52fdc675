"""Creates a cluster with replicas, and shows the shards of a running cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from eventstore.cli.terminal.etcd_options import EtcdAccess, offers_etcd
from eventstore.cli.terminal.output import make_table, print_json, print_table
from eventstore.cli.terminal.program import Command, command_group
from eventstore.cli.terminal.shared_options import DEFAULT_STORE, WAIT_SECONDS, AsJson, StoreAddress

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rich.console import Group

    from eventstore_cluster.status import Behind, ClusterStatus, ShardRow

cluster = command_group("cluster", "The shards of a cluster.")
_COLUMNS = ("shard", "slots", "leader", "epoch", "events", "events/s", "resident", "sorted", "lag of reactions")
_REPLICA_COLUMNS = ("shard", "led by", "since", "because", "replicas", "in sync", "behind")
_MEGABYTE = 1_000_000


@cluster.command("create", cls=Command)
@offers_etcd
def create(
    shards: Annotated[int, typer.Option("--shards", metavar="N", help="How many shards it has.")],
    replicas: Annotated[int, typer.Option("--replicas", metavar="N", help="On how many nodes each shard is kept.")],
    in_sync_min: Annotated[
        int | None,
        typer.Option(
            "--in-sync-min", metavar="N", help="On how many of them an event must be before it is acknowledged. [2, or 1 of 1]"
        ),
    ] = None,
    wait: Annotated[
        float,
        typer.Option("--wait", metavar="SECONDS", min=0, help="How long to wait for nodes, then for all shards."),
    ] = WAIT_SECONDS,
    *,
    etcd: EtcdAccess,
) -> None:
    """Create a cluster with replicas on the nodes that run, and wait until it serves.

    The replicas and the leaders are spread evenly. If it ends half way, run it again. The exit code is 1 if a shard does not
    serve in time.

    \b
    Example:
      eventstore cluster create --shards 4 --replicas 3 --etcd http://127.0.0.1:2379
    """
    from eventstore.errors import ConnectionLost, InvalidArgument

    if etcd.endpoints is None:
        raise InvalidArgument("say with --etcd where the etcd of the nodes is, such as http://127.0.0.1:2379", field="etcd")
    options = etcd.options()
    import trio

    from eventstore_cluster.nodes.creation import create_cluster, wait_until_served
    from eventstore_cluster.nodes.registry_status import registry_status
    from eventstore_cluster.registry.etcd.etcd_registry import EtcdRegistry
    from eventstore_cluster.registry.etcd.gateway import Gateway

    async def created() -> list[int]:
        async with Gateway(options) as gateway:
            registry = EtcdRegistry(gateway, etcd.cluster)
            made = await create_cluster(registry, shards, replicas, in_sync_min, wait)
            print(
                f"Created {etcd.cluster} ({made.cluster.uuid}): shards {shards}, replicas {replicas}, in sync at least "
                f"{made.cluster.in_sync_min}, nodes {', '.join(made.nodes)}",
                flush=True,
            )
            return await wait_until_served(registry, wait)

    missing = trio.run(created)
    _print(registry_status(options, etcd.cluster, 0))
    if missing:
        raise ConnectionLost(
            f"not served after {wait:g} seconds: shards {', '.join(map(str, missing))}; the cluster was created, and the logs "
            "of its nodes say what they wait for"
        )


@cluster.command("status", cls=Command)
@offers_etcd
def status(
    interval: Annotated[float, typer.Option(metavar="SECONDS", min=0, help="The time that events/s is counted over.")] = 1.0,
    as_json: AsJson = False,
    store: StoreAddress = DEFAULT_STORE,
    *,
    etcd: EtcdAccess,
) -> None:
    """Show each shard of a cluster: slots, leader, events, memory, sorted files, and the lag of its reactions.

    --store is the address of a node or of any shard. With --etcd it is not asked, but etcd, which answers while no node does.
    It also knows the replicas, since when (UTC) a shard has its leader, and why the one before it left; the leader says how far
    the others are behind. The exit code is 1 if a shard cannot be reached.

    \b
    Example:
      eventstore cluster status --store tcp://127.0.0.1:7701
    """
    found = _look(store, etcd)(interval)
    if as_json:
        print_json(found.tree())
    else:
        _print(found)
    if lost := _lost(found):
        from eventstore.errors import ConnectionLost

        raise ConnectionLost(f"{lost}; the log of its node says why")


@cluster.command("top", cls=Command)
@offers_etcd
def top(
    interval: Annotated[float, typer.Option(metavar="SECONDS", min=0.1, help="The time between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Look once and exit.")] = False,
    as_json: AsJson = False,
    store: StoreAddress = DEFAULT_STORE,
    *,
    etcd: EtcdAccess,
) -> None:
    """Watch the shards of a cluster: what `cluster status` shows, again and again.

    Looks once if the output is not a terminal. With --json it prints a line for each look.

    \b
    Example:
      eventstore cluster top --interval 2
    """
    import json
    import sys

    look = _look(store, etcd)
    if as_json:
        while True:
            print(json.dumps(look(interval).tree()), flush=True)
            if once:
                return
    if once or not sys.stdout.isatty():
        _print(look(interval))
        return
    from rich.live import Live

    with Live(_drawn(look(0)), screen=True, auto_refresh=False) as live:
        while True:
            live.update(_drawn(look(interval)), refresh=True)


@cluster.command("lead", cls=Command)
@offers_etcd
def lead(
    shard: Annotated[int, typer.Argument(metavar="SHARD", help="The shard.")],
    node: Annotated[str, typer.Argument(metavar="NODE", help="The node whose replica is to lead.")],
    accept_loss: Annotated[
        bool,
        typer.Option("--accept-loss", help="Events that were acknowledged may be lost: only those who are in sync have all."),
    ] = False,
    confirm: Annotated[
        str | None, typer.Option("--confirm", metavar="NODE", help="The name of the node again, instead of being asked for it.")
    ] = None,
    lease: Annotated[
        float,
        typer.Option("--lease", metavar="SECONDS", min=1, help="The longest lease of a node: what it leads is waited for."),
    ] = 60.0,
    wait: Annotated[
        float, typer.Option("--wait", metavar="SECONDS", min=0, help="How long to wait until leadership is handed over.")
    ] = WAIT_SECONDS,
    *,
    etcd: EtcdAccess,
) -> None:
    """Hand the leadership of a shard over to the replica on a node. Nothing is lost, and clients follow.

    The replica must be in sync. What is asked for stays asked for if this is interrupted; asking for the node that leads takes
    it back.

    With --accept-loss a replica leads that is not in sync, when all that are in sync are lost for good. What only they had is
    lost, though it was acknowledged. All other replicas then become copies of this one; what they have more is kept in `cut/`.

    \b
    Examples:
      eventstore cluster lead 3 n2 --etcd http://127.0.0.1:2379
      eventstore cluster lead 3 n2 --accept-loss --etcd http://127.0.0.1:2379
    """
    from eventstore.errors import EventStoreError, InvalidArgument
    from eventstore_cluster.nodes.accepting_loss import accept_loss as accept
    from eventstore_cluster.nodes.accepting_loss import candidate
    from eventstore_cluster.nodes.handing_over import hand_over

    if etcd.endpoints is None:
        raise InvalidArgument("--etcd is needed: who leads is decided there", field="etcd")
    options = etcd.options()
    if not accept_loss:
        led = hand_over(options, etcd.cluster, shard, node, wait)
        took = "already" if led.seconds is None else f"in epoch {led.epoch}, {led.seconds:.2f} s after this was asked for"
        if led.node != node:
            raise EventStoreError(f"{node} was to lead shard {shard} and did not; {led.node} does, {took}. Ask again")
        print(f"{led.node} leads shard {shard} {took}.")
        return
    found = candidate(options, etcd.cluster, shard, node)
    print(f"The log of {node} has epoch {found.replica.epoch} of {found.epoch}, and its events end at {found.replica.ends[0]}.")
    print(f"In sync and running: {', '.join(found.in_sync) or 'nobody'}. What {node} does not have is lost for ever.")
    given = input("The name of the node, to go on: ") if confirm is None else confirm
    if given.strip() != node:
        raise InvalidArgument(f"nothing was done: {given!r} is not {node}", field="confirm")
    accept(options, etcd.cluster, found, lease)
    print(f"The replica on {node} is the only one in sync, in a new generation; it is elected within seconds.")


def _look(store: str, etcd: EtcdAccess) -> Callable[[float], ClusterStatus]:
    """Returns what looks at the cluster, for events/s over so many seconds."""
    if etcd.endpoints is not None:
        options = etcd.options()
        from eventstore_cluster.nodes.registry_status import registry_status

        return lambda interval: registry_status(options, etcd.cluster, interval)
    from eventstore_cluster.status import cluster_status

    return lambda interval: cluster_status(store, interval)


def _print(found: ClusterStatus) -> None:
    print_table(None, _COLUMNS, map(_cells, found.shards))
    if found.nodes is not None:
        print()
        print_table(None, _REPLICA_COLUMNS, map(_replica_cells, found.shards))


def _drawn(found: ClusterStatus) -> Group:
    from rich.console import Group

    tables = [make_table(_lost(found), _COLUMNS, map(_cells, found.shards))]
    if found.nodes is not None:
        tables.append(make_table(None, _REPLICA_COLUMNS, map(_replica_cells, found.shards)))
    return Group(*tables)


def _lost(found: ClusterStatus) -> str | None:
    """Returns which shards cannot be reached, and why; None if all can."""
    return "; ".join(f"shard {each.shard}: {each.error}" for each in found.shards if each.error is not None) or None


def _cells(row: ShardRow) -> tuple[object, ...]:
    return (
        row.shard, row.slots.replace("-", "–"), row.leader, row.epoch, row.events,
        None if row.events_a_second is None else round(row.events_a_second),
        None if row.resident_bytes is None else f"{row.resident_bytes / _MEGABYTE:.0f} MB",
        None if row.event_files is None else f"{row.sorted_files}/{row.event_files}",
        row.reactions_lag_events,
    )  # fmt: skip


def _replica_cells(row: ShardRow) -> tuple[object, ...]:
    since = None if row.leader_since is None else row.leader_since.removesuffix("+00:00").replace("T", " ")
    replicas, in_sync = " ".join(row.replicas or ()), " ".join(row.in_sync or ())
    led_by = row.node if row.successor is None else f"{row.node}, to hand over to {row.successor}"
    return row.shard, led_by, since, row.leader_reason, replicas, in_sync, _behind(row.behind)


def _behind(found: Mapping[str, Behind] | None) -> str | None:
    """Returns how far the followers are behind, those first that are furthest."""
    if found is None:
        return None
    sorted_by = sorted(found.items(), key=lambda each: (-each[1].seconds, each[0]))
    return ", ".join(f"{node} {lag.seconds:.1f} s {_size(lag.bytes)}" for node, lag in sorted_by)


def _size(size: int) -> str:
    return f"{size} B" if size < 1_000 else f"{size / 1_000:.0f} kB" if size < _MEGABYTE else f"{size / _MEGABYTE:.0f} MB"
