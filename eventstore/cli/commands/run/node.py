"""Serves the shards of a folder, or the replicas of a node, each in a process of its own, until stopped."""

from __future__ import annotations

from typing import Annotated

import typer

from eventstore.cli.terminal.etcd_options import EtcdAccess, offers_etcd
from eventstore.cli.terminal.settings_options import Assignments, ConfigFile, all_given, offers_settings
from eventstore.errors import InvalidArgument


@offers_settings()
@offers_etcd
def node(
    shards: Annotated[
        int | None,
        typer.Option(metavar="N", help="How many shards the folder has; a new folder gets as many. [as many as it has, or 1]"),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="The name of the node in its cluster. Needs --etcd.")
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option("--advertise", metavar="HOST", help="How others reach this machine. Needs --etcd. [as --listen]"),
    ] = None,
    lease: Annotated[
        int,
        typer.Option("--lease", metavar="SECONDS", help="How long a node or a leader may be silent, 1 to 60. Needs --etcd."),
    ] = 5,
    zone: Annotated[
        str | None,
        typer.Option(
            "--zone", metavar="NAME", help="The zone, such as a rack, that fails together with this node. Needs --etcd."
        ),
    ] = None,
    keep_left: Annotated[
        float,
        typer.Option("--keep-left", metavar="SECONDS", min=0, help="How long to keep the folder of a replica that moved away."),
    ] = 86_400.0,
    *,
    etcd: EtcdAccess,
    config: ConfigFile = None,
    assignments: Assignments = None,
    **given: object,
) -> None:
    """Serve the shards of a folder until SIGTERM or Ctrl-C.

    Each shard has a process of its own, with the settings of `serve`. --listen tells clients where the shards are: on the
    ports from ten above it on, or on free ones if it is 0. A program connects to the shard that owns an aggregate's slot:
    nothing is forwarded.

    With --etcd it is one node of several, each with a --name: it keeps the replicas that the cluster gives it, and
    `cluster create` says how many shards there are.

    \b
    Example:
      eventstore node --data ./data --shards 4
      eventstore node --name n1 --data ./n1 --etcd http://127.0.0.1:2379
      eventstore cluster status
    """
    import json
    import os
    import sys

    from eventstore.settings.sources import load_with_origins, misspelled_variables

    replicated: dict[str, object] | None = None
    if etcd.endpoints is not None:
        replicated = {**_replicated(etcd, name, advertise, lease, shards), "zone": zone, "left_s": keep_left}
    elif given_here := [
        each for each, value in (("name", name), ("advertise", advertise), ("zone", zone)) if value is not None
    ]:
        option = f"--{given_here[0]}"
        raise InvalidArgument(
            f"{option} is for a node of several; say with --etcd where their etcd is, or leave it out", field=option.strip("-")
        )
    loaded = load_with_origins(config, **all_given(assignments, given))
    options = {
        "settings": loaded.values,
        "shards": shards,
        "misspelled": misspelled_variables(),
        "replicated": replicated,
    }
    # The node lives long: it is to be small, and the libraries of the command line are not.
    os.execv(sys.executable, [sys.executable, "-m", "eventstore_cluster.node", json.dumps(options, default=str)])


def _replicated(etcd: EtcdAccess, name: str | None, advertise: str | None, lease: int, shards: int | None) -> dict[str, object]:
    """Returns what a node of several is told besides its settings. Raises InvalidArgument."""
    if name is None:
        raise InvalidArgument("a node of a cluster needs a name of its own, such as --name n1", field="name")
    if shards is not None:
        raise InvalidArgument(
            "with --etcd, the cluster says which shards there are; leave out --shards, and run `eventstore cluster create "
            f"--shards {shards}` once the nodes run",
            field="shards",
            value=shards,
        )
    return {"name": name, "cluster": etcd.cluster, "lease_s": lease, "advertise": advertise, "etcd": etcd.plain()}
