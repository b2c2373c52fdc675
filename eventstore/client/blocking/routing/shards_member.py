"""A member of a group on all shards, for the blocking client: its thread connects to the node, and joins on every shard."""

from __future__ import annotations

from eventstore.client.blocking.member import Member
from eventstore.client.blocking.routing.router import Router
from eventstore.client.consumer.member_options import MemberOptions


class ShardsMember(Member):
    """As `Member`, on all shards."""

    def __init__(self, router: Router, options: MemberOptions) -> None:
        super().__init__(router.entry, options)
