"""Moves replicas between nodes, shows what is under way, pauses it, takes it back, and limits it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from eventstore.cli.commands.watch.cluster.group import cluster
from eventstore.cli.terminal.etcd_options import EtcdAccess, offers_etcd, required_etcd
from eventstore.cli.terminal.output import print_json
from eventstore.cli.terminal.plan_table import UnderWayTable, sized
from eventstore.cli.terminal.program import PlainCommand
from eventstore.cli.terminal.shared_options import AsJson
from eventstore.cli.terminal.watching import only_watching
from eventstore.fields import size_text

_DAY_S = 86_400.0
_OneShard = Annotated[int | None, typer.Argument(metavar="[SHARD]", help="Only this shard.", show_default=False)]


@cluster.command("move", cls=PlainCommand)
@offers_etcd
def move(
    shard: Annotated[int, typer.Argument(metavar="SHARD", help="The shard.")],
    source: Annotated[str, typer.Option("--from", metavar="NODE", help="The node that keeps the replica now.")],
    target: Annotated[str, typer.Option("--to", metavar="NODE", help="The node that gets the replica.")],
    wait: Annotated[
        float, typer.Option("--wait", metavar="SECONDS", min=0, help="How long to wait until it is done; 0: only ask.")
    ] = _DAY_S,
    yes: Annotated[
        bool, typer.Option("--yes", help="Move the replica even if the space of the other node is unknown.")
    ] = False,
    as_json: AsJson = False,
    *,
    etcd: EtcdAccess,
) -> None:
    """Move a replica of a shard to another node, while clients continue.

    The other node copies the replica and gets in sync. If the old replica leads the shard, the new one takes over. Only then
    the old replica ends. The move continues if the command is interrupted.

    \b
    Example:
      eventstore cluster move 3 --from n1 --to n4 --etcd http://127.0.0.1:2379
    """
    from eventstore_cluster.nodes.moving.moving import move as ask
    from eventstore_cluster.nodes.moving.moving import wait_until_moved

    options = required_etcd(etcd)
    asked = ask(options, etcd.cluster, shard, source, target, unsized=yes)
    with only_watching(f"The move continues; `eventstore cluster cancel {shard}` takes it back."):
        if not as_json:
            print(" ".join((f"Shard {shard} is to be kept by {', '.join(asked.wanted)}.", *asked.notes)), flush=True)
        seconds = wait_until_moved(options, etcd.cluster, asked, wait) if wait else None
    if as_json:
        print_json({**asdict(asked), "seconds": seconds})
    elif seconds is not None:
        print(f"Done after {seconds:.1f} s.")


@cluster.command("plans", cls=PlainCommand)
@offers_etcd
def plans(
    watch: Annotated[bool, typer.Option("--watch", help="Look again and again, until nothing is under way.")] = False,
    interval: Annotated[float, typer.Option(metavar="SECONDS", min=0.1, help="The time between two looks.")] = 2.0,
    as_json: AsJson = False,
    *,
    etcd: EtcdAccess,
) -> None:
    """Show moves and splits under way: the destination of each replica, how much of it is copied, and the shards in a split.

    Ctrl-C only stops watching. With --watch the table is printed when it changes, with --json a line for each look.

    \b
    Example:
      eventstore cluster plans --watch --etcd http://127.0.0.1:2379
    """
    import json
    import time

    from eventstore_cluster.nodes.moving.plans import pending

    options = required_etcd(etcd)
    with only_watching("Nothing was stopped: moves that are under way continue; `eventstore cluster cancel` cancels them."):
        table = UnderWayTable()
        while True:
            found = pending(options, etcd.cluster)
            if as_json:
                print(json.dumps([each.tree() for each in found]), flush=True)
            else:
                table.show(found)
            if not watch or not found:
                return
            time.sleep(interval)


@cluster.command("cancel", cls=PlainCommand)
@offers_etcd
def cancel(
    shard: Annotated[int | None, typer.Argument(metavar="[SHARD]", help="The shard.", show_default=False)] = None,
    every: Annotated[bool, typer.Option("--all", help="Cancel the moves of all shards.")] = False,
    as_json: AsJson = False,
    *,
    etcd: EtcdAccess,
) -> None:
    """Cancel a pending move; the shard's replicas stay on their nodes.

    The unfinished copies are put away. A leader that was handed over stays if it may. `split SHARD --call-off` cancels a
    split.

    \b
    Example:
      eventstore cluster cancel 3 --etcd http://127.0.0.1:2379
    """
    from eventstore.errors import InvalidArgument
    from eventstore_cluster.nodes.moving.plans import take_back

    options = required_etcd(etcd)
    if (shard is None) != every:
        raise InvalidArgument("name a shard, or say --all", field="shard")
    taken = take_back(options, etcd.cluster, shard)
    if as_json:
        print_json({"shards": taken})
    else:
        print(f"Taken back: {', '.join(f'shard {each}' for each in taken) or 'nothing was under way'}.")


@cluster.command("pause", cls=PlainCommand)
@offers_etcd
def pause(shard: _OneShard = None, as_json: AsJson = False, *, etcd: EtcdAccess) -> None:
    """Pause all moves: leaders copy nothing to new replicas and begin no step, until `resume`. All shards continue to serve.

    With SHARD only the moves and the split of this shard are paused; `plans` says who paused them.

    \b
    Examples:
      eventstore cluster pause --etcd http://127.0.0.1:2379
      eventstore cluster pause 3 --etcd http://127.0.0.1:2379
    """
    _set_paused(etcd, True, shard, as_json)


@cluster.command("resume", cls=PlainCommand)
@offers_etcd
def resume(shard: _OneShard = None, as_json: AsJson = False, *, etcd: EtcdAccess) -> None:
    """Resume moves that `pause` has paused. If a shard was paused alone, give its number.

    \b
    Example:
      eventstore cluster resume --etcd http://127.0.0.1:2379
    """
    _set_paused(etcd, False, shard, as_json)


def _set_paused(etcd: EtcdAccess, paused: bool, shard: int | None, as_json: bool) -> None:
    from eventstore_cluster.nodes.moving.plans import pause as set_paused

    options = required_etcd(etcd)
    done = set_paused(options, etcd.cluster, paused, shard)
    print_json(asdict(done)) if as_json else print(done.text(shard))


@cluster.command("limits", cls=PlainCommand)
@offers_etcd
def limits(
    moves: Annotated[
        int | None,
        typer.Option("--moves", metavar="N", help="How many shards may copy replicas at once, 1 to 1000.", show_default=False),
    ] = None,
    max_rate: Annotated[
        str | None,
        typer.Option(
            "--max-rate", metavar="RATE", help="The bytes a second that each of them sends, 1MB to 1000GB; none: no limit."
        ),
    ] = None,
    as_json: AsJson = False,
    *,
    etcd: EtcdAccess,
) -> None:
    """Limit how much moves at once, or show the limits. A limit also applies to moves that are under way.

    \b
    Example:
      eventstore cluster limits --moves 4 --max-rate 50MB --etcd http://127.0.0.1:2379
    """
    from eventstore_cluster.nodes.moving.plans import limit_moves

    options = required_etcd(etcd)
    unlimited = max_rate == "none"
    rate = None if max_rate is None or unlimited else sized(max_rate)
    found = limit_moves(options, etcd.cluster, moves, rate, unlimited=unlimited)
    if as_json:
        print_json(found.value())
        return
    speed = "as fast as they can" if found.rate is None else f"{size_text(found.rate)}/s each"
    print(f"At most {found.at_once} shards copy replicas at once, {speed}.{' They are paused.' if found.pause.on else ''}")
