"""The commands of `eventstore cluster`, by what they are about."""

from eventstore.cli.commands.watch.cluster import adopting, moving, placing, shards, splitting
from eventstore.cli.commands.watch.cluster.group import cluster

__all__ = ["adopting", "cluster", "moving", "placing", "shards", "splitting"]
