"""Which offsets queues hold: [begin, end), as far as readers may see them."""

from __future__ import annotations

from collections.abc import Iterable

from eventstore.broker.log.engine import MessageEngine
from eventstore.broker.topics import Topic, Topics


class QueueBounds:
    """Bounds of the queues of all topics; of many queues, one bound alone takes a tenth of the work."""

    def __init__(self, engine: MessageEngine, topics: Topics) -> None:
        self._engine = engine
        self._topics = topics

    def __call__(self, topic: str, queue: int) -> tuple[int, int]:
        """Returns both bounds of a queue. Raises UnknownTopic, UnknownQueue."""
        found = self._topics.get(topic)
        found.queue(queue)
        log = self._engine.queues[found.id, queue]
        return log.first, log.visible_end(self._engine.visible_position)

    def begins(self, topic: Topic, queues: Iterable[int]) -> list[int]:
        """Returns the first offset of each of these queues."""
        logs, topic_id = self._engine.queues, topic.id
        return [logs[topic_id, queue].first for queue in queues]

    def ends(self, topic: Topic, queues: Iterable[int]) -> list[int]:
        """Returns the offset after the last visible one of each of these queues."""
        logs, topic_id, visible = self._engine.queues, topic.id, self._engine.visible_position
        return [logs[topic_id, queue].visible_end(visible) for queue in queues]
