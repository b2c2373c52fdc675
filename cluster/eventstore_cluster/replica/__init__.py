"""A replica of a shard as a state machine without I/O: who leads, who is in sync, what is committed.

Inputs are frames of other replicas, results of the registry and of the disk, and the time; outputs are `actions`. The rules
that keep acknowledged events, R1 to R15, are named at the lines that keep them, some of which are in `replication`, in `nodes`
and in the package `eventstore`; `docs/adr/0014-replicas-that-fetch.md` lists them.
"""
