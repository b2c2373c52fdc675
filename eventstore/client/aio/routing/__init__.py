"""What the store needs to use several shards as one. The blocking client has a module of the same name and interface."""

from eventstore.client.aio.routing.merged_events import MergedEvents, read_shards
from eventstore.client.aio.routing.merged_subscription import MergedSubscription, follow_shards
from eventstore.client.aio.routing.router import Router, open_router
from eventstore.client.aio.routing.shards_broker import ShardsBroker
from eventstore.client.aio.routing.shards_member import ShardsMember
from eventstore.client.aio.routing.shards_reactions import ShardsReactions

__all__ = [
    "MergedEvents",
    "MergedSubscription",
    "Router",
    "ShardsBroker",
    "ShardsMember",
    "ShardsReactions",
    "follow_shards",
    "open_router",
    "read_shards",
]
