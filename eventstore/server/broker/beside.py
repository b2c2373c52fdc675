"""Opens the broker beside the store of a server, in its folder."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from eventstore.broker.broker import Broker, open_broker
from eventstore.server.logs import get_logger
from eventstore.server.requests.leadership import Leadership
from eventstore.settings.server import ServerSettings

BROKER: Final = "broker"


@asynccontextmanager
async def broker_beside(settings: ServerSettings, leads: Leadership | None, shard: int | None) -> AsyncIterator[Broker | None]:
    """Opens the broker next to the store, which already holds the lock of the data folder; None if it is switched off."""
    if not settings.broker:
        yield None
        return
    path, own = settings.data / BROKER, settings.broker_settings
    if leads is None:
        opening = open_broker(path, own, shard=shard)
    else:
        opening = open_broker(
            path, own, files=leads.files, identity=leads.identity, epoch=leads.epoch, replication=leads.messages, shard=shard
        )
    async with opening as broker:
        for group, topic, queue, before, now in broker.clamped:
            get_logger("eventstore.server").warning(
                "an offset outside its queue was clamped",
                group=group,
                topic=topic,
                queue=queue,
                before=before,
                now=now,
            )
        yield broker
