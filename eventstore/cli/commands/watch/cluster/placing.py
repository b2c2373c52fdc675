"""Plans which nodes keep which replicas, shows what that costs, and has it done."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from eventstore.cli.commands.watch.cluster.group import cluster
from eventstore.cli.terminal.etcd_options import EtcdAccess, offers_etcd, required_etcd
from eventstore.cli.terminal.output import print_json
from eventstore.cli.terminal.plan_table import print_nodes, print_plan
from eventstore.cli.terminal.program import PlainCommand
from eventstore.cli.terminal.shared_options import AsJson
from eventstore.cli.terminal.watching import only_watching

if TYPE_CHECKING:
    from collections.abc import Callable

    from eventstore_cluster.nodes.placing.fleet import Fleet
    from eventstore_cluster.nodes.placing.plan import PlacementPlan

_DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show the plan.")]
_Yes = Annotated[bool, typer.Option("--yes", help="Carry out the plan without a question.")]


@cluster.command("rebalance", cls=PlainCommand)
@offers_etcd
def rebalance(dry_run: _DryRun = False, yes: _Yes = False, as_json: AsJson = False, *, etcd: EtcdAccess) -> None:
    """Spread replicas and leaders evenly over the nodes, by bytes and by appends, moving as little as possible.

    The command shows the plan first: the moves, and what they cost. It keeps zones apart. The moves continue if the command is
    interrupted; `cluster plans` shows how far they are.

    \b
    Example:
      eventstore cluster rebalance --dry-run --etcd http://127.0.0.1:2379
    """
    from eventstore_cluster.nodes.placing.balancing import rebalance as planned

    _plan(etcd, planned, dry_run=dry_run, yes=yes, as_json=as_json)


@cluster.command("drain", cls=PlainCommand)
@offers_etcd
def drain(
    node: Annotated[str, typer.Argument(metavar="NODE", help="The node.")],
    undo: Annotated[bool, typer.Option("--undo", help="The node may get replicas again.")] = False,
    dry_run: _DryRun = False,
    yes: _Yes = False,
    as_json: AsJson = False,
    *,
    etcd: EtcdAccess,
) -> None:
    """Move all replicas off a node. The node gets no replicas until you remove it, or give --undo.

    \b
    Example:
      eventstore cluster drain n2 --etcd http://127.0.0.1:2379
    """
    from eventstore_cluster.nodes.moving.plans import end_draining, start_draining
    from eventstore_cluster.nodes.placing.balancing import drain as planned

    if undo:
        end_draining(required_etcd(etcd), etcd.cluster, node)
        print_json({"node": node, "draining": False}) if as_json else print(f"{node} may keep replicas again.")
        return

    def first() -> None:
        start_draining(required_etcd(etcd), etcd.cluster, node)

    _plan(etcd, lambda fleet: planned(fleet, node), first, dry_run=dry_run, yes=yes, as_json=as_json)


@cluster.command("replicas", cls=PlainCommand)
@offers_etcd
def replicas(
    count: Annotated[int, typer.Argument(metavar="N", help="The number of replicas of each shard.")],
    shard: Annotated[
        list[int] | None,
        typer.Option("--shard", metavar="SHARD", help="Only this shard; may be given several times.", show_default=False),
    ] = None,
    dry_run: _DryRun = False,
    yes: _Yes = False,
    as_json: AsJson = False,
    *,
    etcd: EtcdAccess,
) -> None:
    """Change how many replicas the shards have.

    \b
    Example:
      eventstore cluster replicas 3 --etcd http://127.0.0.1:2379
    """
    from eventstore_cluster.nodes.placing.balancing import resize

    _plan(etcd, lambda fleet: resize(fleet, count, shard), dry_run=dry_run, yes=yes, as_json=as_json)


@cluster.command("nodes", cls=PlainCommand)
@offers_etcd
def nodes(as_json: AsJson = False, *, etcd: EtcdAccess) -> None:
    """Show the nodes: whether each runs or is drained, its replicas, and its free space.

    \b
    Example:
      eventstore cluster nodes --etcd http://127.0.0.1:2379
    """
    from eventstore_cluster.nodes.moving.plans import survey
    from eventstore_cluster.nodes.placing.node_rows import node_rows

    found = survey(required_etcd(etcd), etcd.cluster, 0.0)
    rows = node_rows(found.seen, found.fleet)
    if as_json:
        print_json([asdict(row) for row in rows])
    else:
        print_nodes(rows)


@cluster.command("remove", cls=PlainCommand)
@offers_etcd
def remove(
    node: Annotated[str, typer.Argument(metavar="NODE", help="The node.")], as_json: AsJson = False, *, etcd: EtcdAccess
) -> None:
    """Forget a node that was drained and stopped.

    \b
    Example:
      eventstore cluster remove n2 --etcd http://127.0.0.1:2379
    """
    from eventstore_cluster.nodes.moving.plans import remove as forget

    forget(required_etcd(etcd), etcd.cluster, node)
    print_json({"node": node, "removed": True}) if as_json else print(f"{node} is removed.")


def _plan(
    etcd: EtcdAccess,
    planned: Callable[[Fleet], PlacementPlan],
    first: Callable[[], None] | None = None,
    *,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Shows a plan of the cluster as it is, and has it done if that is wanted. `first`: done before it."""
    from eventstore.errors import InvalidArgument
    from eventstore.fields import counted
    from eventstore_cluster.nodes.moving.plans import carry_out, survey
    from eventstore_cluster.nodes.placing.notes import notes

    options = required_etcd(etcd)
    with only_watching("Nothing was asked for."):
        found = survey(options, etcd.cluster, 1.0)
    plan = planned(found.fleet)
    asks = not dry_run and not yes and not as_json and bool(plan.changes)
    if asks and not sys.stdin.isatty():
        raise InvalidArgument("give --yes to carry out the plan, or --dry-run to see it", field="yes")
    tree = {**plan.tree(), "notes": notes(found.fleet, plan)}
    if not as_json:
        print_plan(plan, found)
    elif dry_run:
        print_json({**tree, "asked": []})
    with only_watching("Nothing was asked for."):
        if dry_run or (asks and input("Do this? [y/N] ").strip().lower() not in ("y", "yes")):
            return
    with only_watching(
        "The moves that were already requested continue: `eventstore cluster plans` shows them, `cancel` cancels them."
    ):
        if first is not None:
            first()
        asked = carry_out(options, etcd.cluster, found, plan)
    if as_json:
        print_json({**tree, "asked": sorted(each.shard for each in asked)})
    elif asked:
        print(f"{counted(len(asked), 'shard')} asked for; `eventstore cluster plans --watch` shows how far.")
