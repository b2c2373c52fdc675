"""Walks the messages of a topic as they arrive, without a consumer group: on one server, or on all shards at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from queue import Empty, Queue
from typing import TYPE_CHECKING, Final, TypeAlias

from eventstore.cli.transfer.same_log import SameTopicLog
from eventstore.errors import UnknownQueue, UnknownTopic

if TYPE_CHECKING:
    from eventstore.client.blocking.broker import BlockingBroker
    from eventstore.client.blocking.store import BlockingStore
    from eventstore.records.message import Message

_SHOWN: Final = 10
_BATCH: Final = 512
_WAIT_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 1.0

MessagePage: TypeAlias = "list[Message] | None"
"""Messages, or None once, when it begins to wait."""
ArrivedMessages: TypeAlias = "tuple[int | None, list[Message] | BaseException | None]"


def walk_topic(
    store: BlockingStore, topic: str, tags: str | None, *, from_start: bool, follow: bool
) -> Iterator[tuple[int | None, Message] | None]:
    """Yields the messages, each with its shard if there are several, in order within each queue, the last 10 of each first.

    With `follow`, yields None once when it begins to wait for more, and walks over shards that are split off, too; else ends
    there.

    Raises:
        UnknownTopic, InvalidArgument
        Diverged: after a reconnect, the broker does not have what was shown.
    """
    numbers = _shards(store)
    here = set(numbers) if len(numbers) == 1 else {each.shard for each in store.broker.queues(topic)}
    arrived: Queue[ArrivedMessages] = Queue(len(numbers))  # so a page of each is held, and one more waits
    for number in numbers:
        _start(number, _Walk(store, number, topic, tags, from_start, follow, is_missing=number not in here), arrived)
    walked, running, waiting = set(numbers), set(numbers), set[int | None]()
    looked_at, told = time.monotonic(), False
    while running:
        if follow and time.monotonic() >= looked_at + _LOOK_SECONDS:
            looked_at = time.monotonic()
            for number in _split_off(walked, store.shards):
                _start(number, _Walk(store, number, topic, tags, True, follow, is_missing=True), arrived)
                walked.add(number)
                running.add(number)
        try:
            number, page = arrived.get(timeout=_LOOK_SECONDS if follow else None)
        except Empty:
            continue
        if isinstance(page, BaseException):
            raise page
        if page is None:
            waiting.add(number)
            if waiting == running and not told:
                told = True
                yield None
        elif page:
            yield from ((number, each) for each in page)
        else:
            running.discard(number)


def _shards(store: BlockingStore) -> list[int | None]:
    """Returns the numbers of all shards; None stands for the only one, which has the lowest number once it is split."""
    return [*store.shards] or [None]


def _split_off(walked: set[int | None], shards: Iterable[int]) -> list[int]:
    first = 1 if None in walked else 0
    return [number for number in sorted(shards)[first:] if number not in walked]


def _start(number: int | None, walk: _Walk, arrived: Queue[ArrivedMessages]) -> None:
    """Walks on a thread, which hands over each page, an empty one at the end, or the error that ended it."""

    def run() -> None:
        try:
            for page in walk.pages():
                arrived.put((number, page))
            arrived.put((number, []))
        except BaseException as error:
            arrived.put((number, error))

    threading.Thread(target=run, daemon=True).start()


class _Walk:
    """The walk over the queues of one shard. `is_missing`: it lacks the topic, as that of dead letters before the first."""

    def __init__(
        self,
        store: BlockingStore,
        shard: int | None,
        topic: str,
        tags: str | None,
        from_start: bool,
        follow: bool,
        *,
        is_missing: bool = False,
    ) -> None:
        self._store, self._shard, self._topic, self._tags = store, shard, topic, tags
        self._from_start, self._follow, self._is_missing = from_start, follow, is_missing
        self._offsets: dict[int, int] = {}
        self._looked_at = -1
        self._same_log = SameTopicLog(topic, shard)

    @property
    def _broker(self) -> BlockingBroker:
        shards = self._store.shards
        if not shards:
            return self._store.broker
        return shards[min(shards) if self._shard is None else self._shard].broker

    def pages(self) -> Iterator[MessagePage]:
        """Yields messages, never an empty list. Notices queues that are added or removed meanwhile."""
        caught_up = not self._follow
        while True:
            ends = self._ends()
            try:
                page = self._next(sorted(ends), wait=caught_up and self._follow) if ends is not None else []
            except UnknownQueue:  # removed meanwhile
                continue
            if page:
                yield page
            elif ends is None or all(self._offsets[number] >= end for number, end in ends.items()):
                if not self._follow:
                    return
                if not caught_up:
                    caught_up = True
                    yield None
                elif ends is None:
                    time.sleep(_LOOK_SECONDS)

    def _ends(self) -> dict[int, int] | None:
        """Returns where each queue ends; None while the topic is missing."""
        try:
            queues = [each for each in self._broker.queues(self._topic) if each.state != "hidden"]
        except UnknownTopic:
            if not self._is_missing:
                raise
            self._from_start = True  # all that will be in it is new
            return None
        is_first = not self._offsets
        self._is_missing = False
        for each in queues:
            begin = max(each.begin, each.end - _SHOWN) if is_first and not self._from_start else each.begin
            self._offsets.setdefault(each.queue, begin)
        self._same_log.begin(self._broker, self._offsets)
        return {each.queue: each.end for each in queues}

    def _next(self, queues: Iterable[int], *, wait: bool) -> list[Message]:
        turns = sorted(queues, key=lambda number: number <= self._looked_at)  # a busy queue may fill a whole answer
        wants = [(self._topic, number, self._offsets[number], self._tags) for number in turns]
        found = self._broker.pull(wants, _BATCH, wait=_WAIT_SECONDS if wait else 0.0)
        if not self._same_log.is_sure(self._broker):
            self._offsets = self._same_log.look(self._broker)
            return []  # pulls again, from there
        self._same_log.check(found.queues)
        for each in found.queues:
            self._offsets[each.queue] = each.next_offset
            if each.messages:
                self._looked_at = each.queue
        messages = found.messages()
        self._same_log.add(messages)
        return messages
