"""A member of a group on all shards, for the blocking client: its thread connects to the node, and joins on every shard."""

from __future__ import annotations

from eventstore.client.blocking.member import BlockingMember
from eventstore.client.blocking.routing.router import BlockingRouter
from eventstore.client.consumer.member_options import MemberOptions


class BlockingShardsMember(BlockingMember):
    """As `BlockingMember`, on all shards."""

    def __init__(self, router: BlockingRouter, options: MemberOptions) -> None:
        super().__init__(router.entry, options)
