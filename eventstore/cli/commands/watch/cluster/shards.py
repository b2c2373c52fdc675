"""Creates a cluster with replicas or rebuilds it, and shows the shards of a running cluster."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from eventstore.cli.commands.watch.cluster.group import cluster
from eventstore.cli.terminal.cluster_table import drawn_cluster, lost_shards, print_cluster
from eventstore.cli.terminal.etcd_options import EtcdAccess, offers_etcd, required_etcd
from eventstore.cli.terminal.output import print_json, print_note
from eventstore.cli.terminal.program import PlainCommand
from eventstore.cli.terminal.shared_options import DEFAULT_STORE, WAIT_SECONDS, AsJson, StoreAddress

if TYPE_CHECKING:
    from collections.abc import Callable

    from eventstore_cluster.registry.etcd.options import EtcdOptions
    from eventstore_cluster.status import ClusterStatus


@cluster.command("create", cls=PlainCommand)
@offers_etcd
def create(
    shards: Annotated[int, typer.Option("--shards", metavar="N", help="How many shards it has.")],
    replicas: Annotated[int, typer.Option("--replicas", metavar="N", help="The number of nodes that keep each shard.")],
    in_sync_min: Annotated[
        int | None,
        typer.Option(
            "--in-sync-min",
            metavar="N",
            help="The number of these nodes that must have an event before it is acknowledged. [2, or 1 of 1]",
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

    options = required_etcd(etcd)
    import trio

    from eventstore_cluster.nodes.creation import create_cluster, wait_until_served
    from eventstore_cluster.registry.etcd.etcd_registry import EtcdRegistry
    from eventstore_cluster.registry.etcd.gateway import Gateway

    async def created() -> list[int]:
        async with Gateway(options) as gateway:
            registry = EtcdRegistry(gateway, etcd.cluster)
            made = await create_cluster(registry, shards, replicas, in_sync_min, wait, print_note)
            print(
                f"Created {etcd.cluster} ({made.cluster.uuid}): shards {shards}, replicas {replicas}, in sync at least "
                f"{made.cluster.in_sync_min}, nodes {', '.join(made.nodes)}",
                flush=True,
            )
            return await wait_until_served(registry, wait)

    missing = trio.run(created)
    _end(missing, options, etcd.cluster, wait, "the cluster was created")


@cluster.command("status", cls=PlainCommand)
@offers_etcd
def status(
    interval: Annotated[float, typer.Option(metavar="SECONDS", min=0, help="The period over which events/s is counted.")] = 1.0,
    as_json: AsJson = False,
    store: StoreAddress = DEFAULT_STORE,
    *,
    etcd: EtcdAccess,
) -> None:
    """Show each shard of a cluster: slots, leader, events, memory, sorted files, and the lag of its reactions.

    --store is the address of a node or of any shard. With --etcd the command asks etcd instead, which answers while no node
    does. etcd also knows the replicas, since when (UTC) a shard has its leader, and why the leader before it left; the leader
    says how far the other replicas are behind. The exit code is 1 if a shard cannot be reached.

    \b
    Example:
      eventstore cluster status --store tcp://127.0.0.1:7701
    """
    found = _look(store, etcd)(interval)
    if as_json:
        print_json(found.tree())
    else:
        print_cluster(found)
    if lost := lost_shards(found):
        from eventstore.errors import ConnectionLost

        raise ConnectionLost(lost)


@cluster.command("upgrade", cls=PlainCommand)
@offers_etcd
def upgrade(as_json: AsJson = False, *, etcd: EtcdAccess) -> None:
    """Raise the format of a cluster with replicas to the newest, once the programs of all nodes know it.

    From then on files are begun in this format, in which commits may have several aggregates. It cannot be taken back: nodes
    with an older program are refused. A node that holds it up is named, and nothing is changed.

    \b
    Example:
      eventstore cluster upgrade --etcd http://127.0.0.1:2379
    """
    from eventstore_cluster.nodes.upgrading import upgrade as raise_format

    done = raise_format(required_etcd(etcd), etcd.cluster)
    if as_json:
        print_json(asdict(done))
    elif done.before == done.format:
        print(f"The cluster has format {done.format} already.")
    else:
        print(f"The cluster has format {done.format} now; it had {done.before}.")


@cluster.command("top", cls=PlainCommand)
@offers_etcd
def top(
    interval: Annotated[float, typer.Option(metavar="SECONDS", min=0.1, help="The time between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Look once and exit.")] = False,
    as_json: AsJson = False,
    store: StoreAddress = DEFAULT_STORE,
    *,
    etcd: EtcdAccess,
) -> None:
    """Watch the shards of a cluster: the command shows the table of `cluster status` again and again.

    It shows it once if the output is not a terminal. With --json it prints a line for each look.

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
        found = look(interval)
        print_cluster(found)
        if lost := lost_shards(found):
            print_note(lost)
        return
    from rich.live import Live

    with Live(drawn_cluster(look(0)), screen=True, auto_refresh=False) as live:
        while True:
            live.update(drawn_cluster(look(interval)), refresh=True)


@cluster.command("lead", cls=PlainCommand)
@offers_etcd
def lead(
    shard: Annotated[int, typer.Argument(metavar="SHARD", help="The shard.")],
    node: Annotated[str, typer.Argument(metavar="NODE", help="The node of the new leader.")],
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss", help="Accept that acknowledged events may be lost: only replicas in sync have all events."
        ),
    ] = False,
    confirm: Annotated[
        str | None, typer.Option("--confirm", metavar="NODE", help="The name of the node again, instead of being asked for it.")
    ] = None,
    lease: Annotated[
        float,
        typer.Option(
            "--lease", metavar="SECONDS", min=1, help="The longest lease of a node: the command waits no longer for a leader."
        ),
    ] = 60.0,
    wait: Annotated[
        float, typer.Option("--wait", metavar="SECONDS", min=0, help="How long to wait until leadership is handed over.")
    ] = WAIT_SECONDS,
    *,
    etcd: EtcdAccess,
) -> None:
    """Hand the leadership of a shard over to the replica on a node. Nothing is lost, and clients follow.

    The replica must be in sync. The request stays if the command is interrupted; to cancel it, give the node that leads now.

    With --accept-loss a replica leads that is not in sync. Use it only if all replicas in sync are lost for good. Events that
    only they had are lost, though they were acknowledged. All other replicas then become copies of the new leader; they keep
    their own other events in `cut/`.

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
        raise InvalidArgument("the command needs --etcd, where leaders are elected", field="etcd")
    options = etcd.options()
    if not accept_loss:
        led = hand_over(options, etcd.cluster, shard, node, wait)
        took = "already" if led.seconds is None else f"in epoch {led.epoch}, {led.seconds:.2f} s after this was asked for"
        if led.node != node:
            then = "Ask again" if led.left is None else f"Why: {led.left}. Its log and health may say more; then ask again"
            raise EventStoreError(f"{node} was to lead shard {shard} and does not; {led.node} does, {took}. {then}")
        print(f"{led.node} leads shard {shard} {took}.")
        return
    found = candidate(options, etcd.cluster, shard, node)
    print(f"The log of {node} has epoch {found.replica.epoch} of {found.epoch}, and its events end at {found.replica.ends[0]}.")
    print(f"In sync and running: {', '.join(found.in_sync) or 'none'}. What {node} does not have is lost for ever.")
    given = input("The name of the node, to continue: ") if confirm is None else confirm
    if given.strip() != node:
        raise InvalidArgument(f"nothing was done: {given!r} is not {node}", field="confirm")
    accept(options, etcd.cluster, found, lease)
    print(f"The replica on {node} is the only one in sync, in a new generation; it is elected within seconds.")


@cluster.command("rebuild", cls=PlainCommand)
@offers_etcd
def rebuild(
    accept_loss: Annotated[
        bool,
        typer.Option("--accept-loss", help="Accept that acknowledged events may be lost: replicas are missing, or not whole."),
    ] = False,
    confirm: Annotated[
        str | None,
        typer.Option("--confirm", metavar="NAME", help="The name of the cluster again, instead of being asked for it."),
    ] = None,
    wait: Annotated[
        float,
        typer.Option("--wait", metavar="SECONDS", min=0, help="How long to wait for all replicas, then for all shards."),
    ] = WAIT_SECONDS,
    *,
    etcd: EtcdAccess,
) -> None:
    """Rebuild a cluster in an etcd that has lost all its data, from the folders of its nodes.

    Start the nodes first, with their folders, on the new etcd. If all replicas are there, nothing is lost: each shard continues
    with the replica that led it last, and the others catch up with it. Running it again is harmless.

    With --accept-loss the cluster continues without replicas that are lost for good. Events that only they had are lost,
    though they were acknowledged. If such a replica comes back, it becomes a copy of the others.

    \b
    Example:
      eventstore cluster rebuild --etcd http://127.0.0.1:2379
    """
    from eventstore.errors import EventStoreError, InvalidArgument

    options = required_etcd(etcd)
    import trio

    from eventstore_cluster.nodes.rebuilding.rebuild import planned_rebuild, rebuilt

    plan = trio.run(planned_rebuild, options, etcd.cluster, wait)
    print(f"Nodes {', '.join(plan.nodes)} know {etcd.cluster} ({plan.cluster.uuid}).", flush=True)
    for choice in plan.choices:
        print(f"Shard {choice.shard} continues with the replica on {choice.node}.", flush=True)
    if plan.risks:
        risks = "; ".join(plan.risks)
        if not accept_loss:
            raise EventStoreError(
                f"acknowledged events may be lost: {risks}. Nothing was written. Start all nodes with their folders and ask "
                "again; --accept-loss continues without replicas that are lost for good"
            )
        print(f"Acknowledged events may be lost for ever: {risks}.")
        given = input("The name of the cluster, to continue: ") if confirm is None else confirm
        if given.strip() != etcd.cluster:
            raise InvalidArgument(f"nothing was done: {given!r} is not {etcd.cluster}", field="confirm")
    missing = trio.run(rebuilt, options, etcd.cluster, plan, wait)
    print(f"{etcd.cluster} is in etcd again, in a new generation.", flush=True)
    _end(missing, options, etcd.cluster, wait, "the cluster is in etcd again")


def _end(missing: list[int], options: EtcdOptions, cluster: str, wait: float, done: str) -> None:
    """Shows the cluster. Raises ConnectionLost: shards are missing that should be served by now."""
    from eventstore.errors import ConnectionLost
    from eventstore_cluster.nodes.registry_status import registry_status

    found = registry_status(options, cluster, 0)
    print_cluster(found)
    if missing:
        raise ConnectionLost(
            f"not served after {wait:g} seconds: shards {', '.join(map(str, missing))}; {done}, and the logs of its nodes say "
            f"what they wait for: {lost_shards(found) or 'by now they are served'}"
        )


def _look(store: str, etcd: EtcdAccess) -> Callable[[float], ClusterStatus]:
    """Returns what looks at the cluster, for events/s over so many seconds."""
    if etcd.endpoints is not None:
        options = etcd.options()
        from eventstore_cluster.nodes.registry_status import registry_status

        return lambda interval: registry_status(options, etcd.cluster, interval)
    from eventstore_cluster.status import cluster_status

    return lambda interval: cluster_status(store, interval)
