"""What the domain of a worker publishes: from its store to topics of the store's broker, both over the network.

Of a cluster, each shard has an outbox for each topic, to its own queues of it. Topic `billing` of shard 1 is `topic:billing@1`
for operators, unless there is only one. The checkpoints are files beside that of the reactions: reactions.json has
reactions-published-billing.json. Each outbox reads all events, so it knows how far it is where it has none to publish.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import trio

from eventstore.client.aio.store import NetworkStore
from eventstore.domain.domain import Domain
from eventstore.domain.publication import Publication
from eventstore.errors import EventStoreError
from eventstore.following.log import uuid_and_last_sequence
from eventstore.following.parts import Part, Parts
from eventstore.records.topic_names import check_name
from eventstore.server.bootstrap import checkpoint_of_shard
from eventstore.server.outbox.checkpoint_file import CheckpointFile
from eventstore.server.outbox.inherited_events import publish_inherited, take_over
from eventstore.server.outbox.outbox import Outbox
from eventstore.server.outbox.parked_messages import ParkedMessages
from eventstore.server.outbox.publishing import Publishing, WatchedOutbox, watched_publication
from eventstore.server.outbox.remote_ends import RemoteEvents, RemoteTopic

_LOOK_S: Final = 1.0
_AGAIN_S: Final = 1.0
_log = logging.getLogger(__name__)


class WorkerPublishing(Publishing):
    """Publishes what `domain` says. `checkpoint`: that of the reactions."""

    def __init__(self, store: NetworkStore, domain: Domain, checkpoint: Path) -> None:
        """Raises InvalidArgument: a name is not valid for a topic."""
        super().__init__([])
        for topic in domain.publications:
            check_name("topic of @publishes", topic)
        self._domain = domain
        self._checkpoint = checkpoint
        self._parts = Parts(store)
        self._last = dict[int | None, int]()  # by part

    async def run(self) -> None:
        """Publishes until cancelled."""
        await self._parts.run(self._run)

    async def _run(self, parts: list[Part[NetworkStore]]) -> None:
        """Publishes the events of the parts that there are, until cancelled."""
        uuids = {part.number: part.uuid or await _uuid(part.store) for part in parts}
        watched = {
            publication.topic: {part.number: await self._watched_of(publication, part, uuids[part.number]) for part in parts}
            for publication in self._domain.publications.values()
        }
        self._watched = [each for of_topic in watched.values() for each in of_topic.values()]
        async with trio.open_nursery() as nursery:
            for part in parts:
                nursery.start_soon(self._look_at_last, part)
            for of_topic in watched.values():
                nursery.start_soon(self._publish, of_topic, parts)

    async def _publish(self, watched: dict[int | None, WatchedOutbox], parts: list[Part[NetworkStore]]) -> None:
        outboxes = {number: each.outbox for number, each in watched.items()}
        while True:
            try:
                await publish_inherited(outboxes, parts, end_refused=False)
                break
            except* (EventStoreError, OSError) as errors:
                _log.error("what new shards begin with is published again in %g s: %s", _AGAIN_S, errors.exceptions[0])
            await trio.sleep(_AGAIN_S)
        async with trio.open_nursery() as nursery:
            for each in watched.values():
                nursery.start_soon(each.run)

    async def _watched_of(self, publication: Publication, part: Part[NetworkStore], uuid: str) -> WatchedOutbox:
        topic, store, number = publication.topic, part.store, part.number
        whole = self._checkpoint.with_name(f"{self._checkpoint.stem}-published-{topic}.json")
        own = checkpoint_of_shard(whole, number)
        await trio.to_thread.run_sync(take_over, whole, own)
        events = RemoteEvents(store, uuid, partial(self._parts.others, part))
        of, suffix = ("", "") if number is None else (f"events of shard {number}", f"@{number}")
        make = partial(Outbox, events, RemoteTopic(store, topic), CheckpointFile(own), of=of)
        parked = ParkedMessages(store, topic)
        return watched_publication(publication, events, make, parked, lambda: self._last.get(number, 0), suffix)

    async def _look_at_last(self, part: Part[NetworkStore]) -> None:
        while True:
            with suppress(EventStoreError):  # publishing asks it as well, and reports that
                self._last[part.number] = (await uuid_and_last_sequence(part.store))[1]
            await trio.sleep(_LOOK_S)


async def _uuid(store: NetworkStore) -> str:
    """Returns the uuid of a store; waits for one that is away."""
    while True:
        try:
            return (await uuid_and_last_sequence(store))[0]
        except EventStoreError as error:
            _log.warning("publishing waits for the store: %s", error.message)
            await trio.sleep(_AGAIN_S)
