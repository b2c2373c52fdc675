"""Takes a single store into a new cluster, and a shard of one out again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from eventstore.cli.commands.watch.cluster.group import cluster
from eventstore.cli.terminal.etcd_options import EtcdAccess, offers_etcd, required_etcd
from eventstore.cli.terminal.output import meter, print_json
from eventstore.cli.terminal.program import PlainCommand
from eventstore.cli.terminal.shared_options import DEFAULT_STORE, AsJson, ShowProgress, StoreAddress


@cluster.command("adopt", cls=PlainCommand)
@offers_etcd
def adopt(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="The data folder of the store; no process may have it open.")
    ],
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="The name of its node.")] = "n1",
    as_json: AsJson = False,
    *,
    etcd: EtcdAccess,
) -> None:
    """Make a single store shard 0 of a new cluster, in place; or make the shards of a node without replicas its shards.

    Nothing is copied, and readers' positions stay valid. Stop the server first, and start the folder as a node afterwards.
    Then `cluster replicas` makes replicas on other nodes, and `cluster split` makes more shards. If the command is
    interrupted, the folder is still the store, or the node: run the command again.

    \b
    Examples:
      eventstore cluster adopt ./data --etcd http://127.0.0.1:2379
      eventstore node --name n1 --data ./data --etcd http://127.0.0.1:2379
    """
    from eventstore.fields import counted
    from eventstore_cluster.nodes.adopting.adopting import adopt as ask
    from eventstore_cluster.nodes.first_read import on_registry

    options = required_etcd(etcd)
    done = on_registry(options, etcd.cluster, lambda registry: ask(registry, folder, name))
    if as_json:
        print_json({"cluster": str(done.cluster), "name": etcd.cluster, "node": done.node, "events": done.events})
        return
    shards = "".join(f", shard {number} with {counted(events, 'event')}" for number, events in done.events.items())
    print(f"{folder} is the folder of node {done.node} of {etcd.cluster} ({done.cluster}){shards}.")
    print(f"Start it: eventstore node --name {done.node} --data {folder} --etcd {etcd.endpoints} --cluster {etcd.cluster}")


@cluster.command("extract", cls=PlainCommand)
def extract(
    shard: Annotated[int, typer.Argument(metavar="SHARD", help="The shard.")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of the new store; it must not exist.")],
    progress: ShowProgress = None,
    as_json: AsJson = False,
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """Copy the events of a shard out as a single store, while the cluster serves.

    The command reads the shard's leader. It copies all events that the shard owns and had committed when the command began,
    with their versions, times and command ids; sequences begin at 1 again. It does not copy topics, messages, and the
    checkpoints of reactions and the outbox. --store is the address of a node.

    \b
    Example:
      eventstore cluster extract 3 ./shard-3 --store tcp://127.0.0.1:7701
    """
    from dataclasses import asdict

    import trio

    from eventstore.cli.transfer.extract_run import Extracted
    from eventstore.cli.transfer.extract_run import extract as run
    from eventstore.fields import counted

    with meter("extract", False if as_json and progress is None else progress) as bar:

        def on_progress(done: Extracted, last: int) -> None:
            bar.update(done.sequence, max(last, done.sequence), counted(done.events, "event"))

        done = trio.run(run, store, shard, folder, on_progress)
    if as_json:
        print_json({**asdict(done), "folder": str(folder)})
        return
    out = done.left_out
    rest = f"; {out:,} {'is' if out == 1 else 'are'} left out, of the server itself or of slots of another shard" if out else ""
    print(f"{counted(done.events, 'event')} of shard {shard}, up to its sequence {done.sequence}, are in {folder}{rest}.")
    if done.parted:
        commits = counted(done.parted, "commit of several aggregates has", "commits of several aggregates have")
        print(f"{commits} other aggregates in other shards since a split; what shard {shard} has of each is one commit.")
    print(f"It is a single store: eventstore serve --data {folder}")
