"""The command that all of them follow."""

from eventstore.cli.terminal.program import command_group

cluster = command_group("cluster", "The shards of a cluster.")
