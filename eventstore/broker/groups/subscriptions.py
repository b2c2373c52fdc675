"""The topics that members of a group read, by topic: a change costs what changes, not members times topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from eventstore.records.tag_filter import TagFilter


@dataclass(slots=True)
class GroupSubscription:
    """A topic that members read.

    Attributes:
        tags: what all of them want.
        readers: in the order in which they came.
        held: the queues of each member that has some.
    """

    tags: TagFilter | None
    readers: dict[str, None] = field(default_factory=dict)
    held: dict[str, list[int]] = field(default_factory=dict)


class GroupSubscriptions:
    """The subscriptions of a group.

    Attributes:
        load: how many queues of all topics each member has.
        changed: topics that have other readers than at the last assignment.
    """

    def __init__(self) -> None:
        self.by_topic: dict[str, GroupSubscription] = {}
        self.load: dict[str, int] = {}
        self.changed: set[str] = set()

    def other_wish(self, member: str, wishes: Mapping[str, TagFilter | None]) -> tuple[str, str] | None:
        """Returns a topic of which other members want other tags, and one of these members; None if all want the same."""
        for topic, tags in wishes.items():
            known = self.by_topic.get(topic)
            if known is not None and known.tags != tags:
                other = next((each for each in known.readers if each != member), None)
                if other is not None:
                    return topic, other
        return None

    def add(self, member: str, wishes: Mapping[str, TagFilter | None]) -> None:
        """Adds a reader of these topics. All readers of a topic must want the same tags (see `other_wish`)."""
        self.load.setdefault(member, 0)
        for topic, tags in wishes.items():
            known = self.by_topic.setdefault(topic, GroupSubscription(tags))
            known.tags = tags
            if member not in known.readers:
                known.readers[member] = None
                self.changed.add(topic)

    def remove(self, member: str, topics: Iterable[str]) -> None:
        """Removes a reader of these topics. Where it had no queue, the others keep theirs."""
        for topic in topics:
            known = self.by_topic[topic]
            known.readers.pop(member, None)
            if member in known.held:
                self.changed.add(topic)
            elif not known.readers:
                del self.by_topic[topic]

    def give(self, topic: str, assigned: dict[str, list[int]]) -> None:
        """Gives the queues of a topic to its readers, once they were taken."""
        known = self.by_topic[topic]
        known.held = assigned
        for member, queues in assigned.items():
            self.load[member] += len(queues)
        if not known.readers:
            del self.by_topic[topic]

    def take(self, topic: str) -> dict[str, list[int]]:
        """Takes the queues of a topic from its readers. Returns who had which."""
        known = self.by_topic[topic]
        held, known.held = known.held, {}
        for member, queues in held.items():
            if member in self.load:
                self.load[member] -= len(queues)
        return held
