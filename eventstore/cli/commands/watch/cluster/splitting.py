"""Splits shards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from eventstore.cli.commands.watch.cluster.group import cluster
from eventstore.cli.terminal.etcd_options import EtcdAccess, offers_etcd, required_etcd
from eventstore.cli.terminal.output import print_json, print_note
from eventstore.cli.terminal.program import PlainCommand
from eventstore.cli.terminal.shared_options import AsJson
from eventstore.cli.terminal.watching import only_watching
from eventstore.errors import EventStoreError, InvalidArgument
from eventstore.fields import counted

_ASK_S = 5.0  # a leader that is slower is not waited for: the split does not need its answer

if TYPE_CHECKING:
    from eventstore_cluster.registry.etcd.options import EtcdOptions


@cluster.command("split", cls=PlainCommand)
@offers_etcd
def split(
    shard: Annotated[int, typer.Argument(metavar="SHARD", help="The shard.")],
    into: Annotated[
        int, typer.Option("--into", metavar="N", help="The number of shards after the split, including this one: 2 to 32.")
    ] = 2,
    call_off: Annotated[
        bool, typer.Option("--call-off", help="Cancel the split. This is possible until the slots are given away.")
    ] = False,
    wait: Annotated[
        float, typer.Option("--wait", metavar="SECONDS", min=0, help="How long to wait until it is done; 0: only ask.")
    ] = 3600.0,
    as_json: AsJson = False,
    *,
    etcd: EtcdAccess,
) -> None:
    """Split a shard, while clients continue: new shards get some of its slots, in even ranges.

    Each node with a replica of the shard makes the replicas of the new shards out of its own files, without copying them. Then
    writes to the leaving slots wait for a moment, and clients follow. `cluster move` moves replicas to other nodes. The split
    continues if the command is interrupted; --call-off cancels it. A second request is refused while the split is under way;
    after it, it splits the remaining slots of the shard once more: `cluster status` shows them.

    Before it asks, the command says how many commits of several aggregates the shard has taken that a split may refuse: those
    whose ids have no common text in braces.

    \b
    Examples:
      eventstore cluster split 0 --etcd http://127.0.0.1:2379
      eventstore cluster split 0 --into 8 --etcd http://127.0.0.1:2379
    """
    from eventstore.records.cluster_map import slots_text
    from eventstore_cluster.nodes.splitting.splitting import split as ask
    from eventstore_cluster.nodes.splitting.splitting import take_back, wait_until_split

    options = required_etcd(etcd)
    if call_off:
        gone = take_back(options, etcd.cluster, shard)
        if as_json:
            print_json({"shard": shard, "called_off": list(gone)})
        else:
            print(f"Shard {shard} is not split: {', '.join(map(str, gone))} will not be there.")
        return
    apart = _commits_apart(options, etcd.cluster, shard)
    asked = ask(options, etcd.cluster, shard, into)
    gives = "; ".join(f"shard {number} gets {slots_text(slots)}" for number, slots in asked.gives.items())
    if not as_json:
        print(f"Shard {shard} is to keep slots {slots_text(asked.keeps)}; {gives}.", flush=True)
    seconds = None
    if wait:
        with only_watching(f"The split continues; `eventstore cluster split {shard} --call-off` takes it back."):
            seconds = wait_until_split(options, etcd.cluster, asked, wait)
    if as_json:
        gives_listed = {str(number): list(map(list, slots)) for number, slots in asked.gives.items()}
        figures = {"shard": shard, "keeps": list(map(list, asked.keeps)), "gives": gives_listed, "seconds": seconds}
        print_json(figures | {"joint_commits_apart": apart})
    elif seconds is not None:
        print(f"Done after {seconds:.1f} s.")


def _commits_apart(options: EtcdOptions, cluster_name: str, shard: int) -> int | None:
    """Says how many commits a split may refuse, and returns it; None if that is not known."""
    from eventstore.blocking import connect
    from eventstore.client.options import scheme_of_environment
    from eventstore_cluster.nodes.splitting.splitting import serving_address

    address = serving_address(options, cluster_name, shard)
    if address is None:
        return None
    try:
        with connect(f"{scheme_of_environment()}://{address}", timeout=_ASK_S, reconnect_timeout=_ASK_S) as leader:
            figures = leader.stats()
    except EventStoreError as error:
        print_note(f"The leader of shard {shard} does not say which commits a split may refuse: {error.message}")
        return None
    if figures.get("subject_buckets"):
        raise InvalidArgument(
            f"shard {shard} has keys of subjects, and a shard with keys is not split", field="shard", value=shard
        )
    joint, apart = int(figures.get("joint_commits") or 0), int(figures.get("joint_commits_apart") or 0)
    if apart:
        of = counted(joint, "commit of several aggregates", "commits of several aggregates")
        print_note(
            f"{apart:,} of {of} since the leader's start had aggregates without a common text in braces. Once a split has "
            "parted such aggregates, a commit of them is refused (CrossShard)."
        )
    return apart
