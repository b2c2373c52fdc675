"""Topics and their queues, in memory and as a JSON document that is replaced as a whole.

A queue is `open` to producers and consumers, or `draining`: open to consumers alone until all messages are consumed, or
`hidden`: to be deleted. Ids of topics and numbers of queues are never reused, because entries in the log refer to them for
years.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal, TypeAlias, cast

from eventstore.chunks.documents import PREVIOUS, Tree, read_tree, unknown_members, write_document
from eventstore.chunks.files import Files
from eventstore.errors import Corrupt, InvalidArgument, UnknownQueue, UnknownTopic
from eventstore.fields import check_int, counted, shown

QUEUES_MAX: Final = 256
QUEUE_NUMBER_MAX: Final = 65_535
TOPICS_MAX: Final = 10_000
QUEUES_TOTAL_MAX: Final = 100_000
QueueState: TypeAlias = Literal["open", "draining", "hidden"]
STATES: Final = ("open", "draining", "hidden")


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic, with the state of each queue by number.

    Attributes:
        next_queue: the number of the next new queue.
        unknown: members of the document that a newer program has written.
        open: the queues that take messages.
        readable: the queues that consumers may read.
    """

    name: str
    id: int
    queues: dict[int, QueueState]
    next_queue: int
    unknown: Tree = field(default_factory=dict)
    open: tuple[int, ...] = field(init=False)
    readable: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        ordered = sorted(self.queues.items())
        object.__setattr__(self, "open", tuple(number for number, state in ordered if state == "open"))
        object.__setattr__(self, "readable", tuple(number for number, state in ordered if state != "hidden"))

    def queue(self, number: int) -> QueueState:
        """Raises UnknownQueue."""
        try:
            return self.queues[number]
        except KeyError:
            raise UnknownQueue(
                f"topic {self.name!r} has no queue {number}; it has {', '.join(map(str, self.readable)) or 'none'}",
                topic=self.name,
                queue=number,
            ) from None


class Topics:
    """All topics by name. Changes are durable on return; the dictionary is replaced, never changed in place.

    `before_visible` is called with a changed topic before the change is visible.
    """

    def __init__(self, files: Files, path: Path) -> None:
        self.by_name: dict[str, Topic] = {}
        self.before_visible: Callable[[Topic], None] = lambda _: None
        self._files = files
        self._path = path
        self._next_id = 1
        self._unknown: Tree = {}

    def load(self) -> None:
        """Raises Corrupt or FileNotFoundError."""
        tree = read_tree(self._files, self._path)
        try:
            self._next_id = cast(int, tree["next_id"])
            self._unknown = unknown_members(tree, ("next_id", "topics"))
            self.by_name = {name: _topic(name, cast(Tree, rest)) for name, rest in cast(Tree, tree["topics"]).items()}
            ids = {topic.id for topic in self.by_name.values()}
            if len(ids) != len(self.by_name) or any(topic_id >= self._next_id for topic_id in ids):
                raise ValueError("two topics have the same id")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Corrupt(
                str(self._path), 0, f"not a list of topics ({error!r}); the previous copy is {self._path.name}{PREVIOUS}"
            ) from None

    def save(self) -> None:
        self._write(self.by_name, self._next_id)

    def get(self, name: str) -> Topic:
        """Raises UnknownTopic."""
        try:
            return self.by_name[name]
        except (KeyError, TypeError):
            raise UnknownTopic(f"there is no topic {shown(name)}; create it first", topic=str(name)) from None

    def create(self, name: str, queues: int) -> Topic:
        """Creates a topic with this many open queues, numbered from 0. The name has been checked.

        Raises:
            InvalidArgument: it exists already, or a limit is broken.
        """
        check_int("queues", queues, 1, QUEUES_MAX)
        if name in self.by_name:
            raise InvalidArgument(f"topic {name!r} exists already; use it, or choose another name", field="topic", value=name)
        if len(self.by_name) >= TOPICS_MAX:
            raise InvalidArgument(
                f"there are {TOPICS_MAX} topics already, no more are allowed", field="topic", limit=TOPICS_MAX
            )
        self._check_total(queues)
        topic = Topic(name, self._next_id, dict.fromkeys(range(queues), "open"), queues)
        return self._put(topic, self._next_id + 1)

    def add_queues(self, name: str, count: int) -> Topic:
        """Raises UnknownTopic, InvalidArgument."""
        topic = self.get(name)
        check_int("count", count, 1, QUEUES_MAX)
        if len(topic.queues) + count > QUEUES_MAX:
            have = counted(len(topic.queues), "queue")
            raise InvalidArgument(
                f"topic {name!r} has {have}, and {count} more are over the limit of {QUEUES_MAX}",
                field="count",
                limit=QUEUES_MAX,
                value=count,
            )
        check_int("queue", topic.next_queue + count - 1, 0, QUEUE_NUMBER_MAX)
        self._check_total(count)
        added: dict[int, QueueState] = dict.fromkeys(range(topic.next_queue, topic.next_queue + count), "open")
        return self._put(replace(topic, queues={**topic.queues, **added}, next_queue=topic.next_queue + count))

    def set_state(self, name: str, number: int, state: QueueState) -> Topic:
        """Raises UnknownTopic, UnknownQueue, InvalidArgument (the last open queue stays open)."""
        topic = self.get(name)
        topic.queue(number)
        if topic.open == (number,) and state != "open":
            raise InvalidArgument(
                f"queue {number} is the last open one of {name!r}; add another first, or delete the topic", field="queue"
            )
        return self._put(replace(topic, queues={**topic.queues, number: state}))

    def remove_queue(self, name: str, number: int) -> Topic:
        """Raises UnknownTopic, UnknownQueue, InvalidArgument: it is not hidden."""
        topic = self.get(name)
        if topic.queue(number) != "hidden":
            raise InvalidArgument(f"queue {number} of {name!r} is {topic.queues[number]}; hide it first", field="queue")
        return self._put(replace(topic, queues={each: state for each, state in topic.queues.items() if each != number}))

    def delete(self, name: str) -> Topic:
        """Raises UnknownTopic."""
        topic = self.get(name)
        self._write({each: kept for each, kept in self.by_name.items() if each != name}, self._next_id)
        return topic

    def _check_total(self, more: int) -> None:
        """Raises InvalidArgument: there would be too many queues. Every chunk begins with a state record, which has an entry
        for each queue, and the size of a record is limited.
        """
        total = more + sum(len(topic.queues) for topic in self.by_name.values())
        if total > QUEUES_TOTAL_MAX:
            raise InvalidArgument(
                f"all topics together would have {total} queues, allowed are {QUEUES_TOTAL_MAX}",
                field="queues",
                limit=QUEUES_TOTAL_MAX,
                value=total,
            )

    def _put(self, topic: Topic, next_id: int | None = None) -> Topic:
        self._write({**self.by_name, topic.name: topic}, next_id or self._next_id, topic)
        return topic

    def _write(self, topics: dict[str, Topic], next_id: int, changed: Topic | None = None) -> None:
        try:
            write_document(self._files, self._path, self._tree(topics, next_id))
        except OSError:  # it may be in place nevertheless, and a restart would load it: messages of a topic would be lost
            with contextlib.suppress(OSError):
                write_document(self._files, self._path, self._tree(self.by_name, self._next_id))
            raise
        if changed is not None:
            self.before_visible(changed)
        self.by_name, self._next_id = topics, next_id

    def _tree(self, topics: dict[str, Topic], next_id: int) -> Tree:
        return {**self._unknown, "next_id": next_id, "topics": _members(topics)}


def _members(topics: dict[str, Topic]) -> Tree:
    return {
        topic.name: {
            **topic.unknown,
            "id": topic.id,
            "next_queue": topic.next_queue,
            "queues": {str(number): state for number, state in topic.queues.items()},
        }
        for topic in topics.values()
    }


def _topic(name: str, rest: Tree) -> Topic:
    queues = {int(number): cast(QueueState, state) for number, state in cast(Tree, rest["queues"]).items()}
    if any(state not in STATES for state in queues.values()):
        raise ValueError(f"{name}: the state of a queue is not one of {', '.join(STATES)}")
    unknown = unknown_members(rest, ("id", "next_queue", "queues"))
    topic = Topic(name, cast(int, rest["id"]), queues, cast(int, rest["next_queue"]), unknown)
    if topic.next_queue <= max(queues, default=-1):
        raise ValueError(f"{name}: the number of a queue is not below next_queue")
    return topic
