"""A member of a group on all shards, for the blocking client: its thread connects to the node, and joins on every shard."""

from __future__ import annotations

from eventstore.client.blocking.member import Member
from eventstore.client.blocking.routing.router import Router
from eventstore.client.consumer.member_options import MemberOptions


def shards_member(router: Router, options: MemberOptions) -> Member:
    """Returns a member of the group on all shards."""
    return Member(router.entry, options)
