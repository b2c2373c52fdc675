"""The offsets document: the committed offsets of all consumer groups as one file, with the previous version as a copy.

It also has the clock of retention (see `age_clock`), the retry policies of groups, what `attempts` counts, which dead letters
were replayed, and which members have left. It is written about once a second, not with every commit: after a crash, messages of
the last second may be delivered again. It is also written at opening, with a higher number of starts, so that no generation of
a group is ever used twice.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias, cast

from eventstore.broker.retry_policy import RetryPolicy
from eventstore.chunks.documents import PREVIOUS, Tree, read_tree, unknown_members, write_document
from eventstore.chunks.files import NO_SPACE, Files
from eventstore.errors import Corrupt, FolderRefused, InvalidArgument

GENERATIONS_PER_START: Final = 1 << 20
Offsets: TypeAlias = dict[str, dict[int, int]]
"""Topic → queue → the offset of the next message to consume."""
_MEMBERS: Final = ("groups", "starts", "policies", "attempts", "deaths", "replayed", "departures", "age_clock")
_POLICY_MEMBERS: Final = ("delays_ms", "attempts", "dead_letters")
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class QueueAttempts:
    """Attempts of a group at messages of one queue that did not end well.

    Attributes:
        failed: by offset, how often a message failed in place.
        deaths: for each member that died while it held messages of the queue, the offset after them.
        killer: the message that used up its attempts by killing its consumers.
    """

    failed: dict[int, int] = field(default_factory=dict)
    deaths: list[int] = field(default_factory=list)
    killer: int | None = None

    def __bool__(self) -> bool:
        return bool(self.failed or self.deaths)


class OffsetsDocument:
    """Committed offsets by group.

    Attributes:
        replayed: by group the number of its topic of dead letters, and ranges of offsets there.
        departures: by group and member how it left, and when; see `departures`.
        changed: memory is ahead of the file.
    """

    def __init__(self, files: Files, path: Path) -> None:
        self.groups: dict[str, Offsets] = {}
        self.policies: dict[str, RetryPolicy] = {}
        self.attempts: dict[str, dict[tuple[str, int], QueueAttempts]] = {}
        self.replayed: dict[str, tuple[int, list[tuple[int, int]]]] = {}
        self.departures: dict[str, dict[str, tuple[str, int]]] = {}
        self.age_clock: int | None = None
        self.starts = 0
        self.changed = False
        self._unknown: Tree = {}
        self._policies_read: dict[str, tuple[RetryPolicy, Tree]] = {}
        self._files = files
        self._path = path

    def load(self) -> None:
        """Loads the document, or the previous copy if the document is damaged.

        Raises:
            Corrupt, FolderRefused: neither can be read.
        """
        try:
            self._take(self._path)
        except (Corrupt, FileNotFoundError) as error:
            copy = self._path.with_name(self._path.name + PREVIOUS)
            try:
                self._take(copy)
            except FileNotFoundError:
                if isinstance(error, Corrupt):
                    raise error from None
                raise FolderRefused(str(self._path), "is missing; restore it. Nothing was changed") from None
            _log.warning("%s: %s; loaded the previous copy: groups may get messages again", self._path, error)

    def inherit(self, parent: OffsetsDocument) -> None:
        """Takes over the parent's groups, at the start of this broker's queues, and their retry policies. For the broker of a
        shard that is split off: it has no messages yet, and must delete none that these groups have not consumed.
        """
        self.groups = {
            group: {topic: dict.fromkeys(queues, 0) for topic, queues in topics.items()}
            for group, topics in parent.groups.items()
        }
        self.policies = dict(parent.policies)

    def begin(self) -> None:
        """Counts a start, so that all generations from now on are higher than before."""
        self.starts += 1
        try:
            self.write(self.tree())
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            self.changed = True
            _log.warning("%s: not written: %s", self._path, error.strerror)

    def tree(self) -> Tree:
        """Returns a copy of everything, for `write` on another thread."""
        self.changed = False
        groups: Tree = {
            group: {topic: cast(Tree, queues.copy()) for topic, queues in topics.items()}
            for group, topics in self.groups.items()
        }
        policies: Tree = {
            group: {
                **self._unknown_of(group, each),
                "delays_ms": [round(delay * 1000) for delay in each.delays_s],
                "attempts": each.attempts,
                "dead_letters": each.dead_letters,
            }
            for group, each in self.policies.items()
        }
        attempts: Tree = {
            group: [
                [topic, queue, offset, count]
                for (topic, queue), each in queues.items()
                for offset, count in each.failed.items()
            ]
            for group, queues in self.attempts.items()
        }
        deaths: Tree = {
            group: [[topic, queue, each.killer, *each.deaths] for (topic, queue), each in queues.items() if each.deaths]
            for group, queues in self.attempts.items()
        }
        replayed: Tree = {
            group: [number, *(cast(Tree, [first, end]) for first, end in ranges)]
            for group, (number, ranges) in self.replayed.items()
        }
        return {
            **self._unknown,
            "groups": groups,
            "starts": self.starts,
            "policies": policies,
            "attempts": attempts,
            "deaths": deaths,
            "replayed": replayed,
            "departures": {
                group: [[member, how, time_us] for member, (how, time_us) in rows.items()]
                for group, rows in self.departures.items()
            },
            "age_clock": self.age_clock,
        }

    def _unknown_of(self, group: str, policy: RetryPolicy) -> Tree:
        """Returns the members of a policy that a newer program has written, unless it was replaced since."""
        read, unknown = self._policies_read.get(group, (None, {}))
        return unknown if read is policy else {}

    def write(self, tree: Tree) -> None:
        """Writes the document; durable on return. Raises OSError."""
        write_document(self._files, self._path, tree)

    def _take(self, path: Path) -> None:
        tree = read_tree(self._files, path)
        try:
            starts, age_clock = tree["starts"], cast("int | None", tree.get("age_clock"))
            if age_clock is not None:
                _offset(age_clock)
            groups = {
                group: {
                    topic: {int(queue): _offset(offset) for queue, offset in cast(Tree, queues).items()}
                    for topic, queues in cast(Tree, topics).items()
                }
                for group, topics in cast(Tree, tree["groups"]).items()
            }
            policies = {group: _policy(cast(Tree, each)) for group, each in cast(Tree, tree.get("policies", {})).items()}
            attempts, replayed, departures = _attempts(tree), _replayed(tree), _departures(tree)
        except (KeyError, ValueError, TypeError, AttributeError, InvalidArgument) as error:
            raise Corrupt(
                str(path), 0, f"not a document of offsets ({error!r}); the previous copy is {self._path.name}{PREVIOUS}"
            ) from None
        if not isinstance(starts, int):
            raise Corrupt(str(path), 0, f"not a number of starts; the previous copy is {self._path.name}{PREVIOUS}")
        self.groups, self.starts, self.policies, self.attempts = groups, starts, policies, attempts
        self.replayed, self.departures = replayed, departures
        self.age_clock, self._unknown = age_clock, unknown_members(tree, _MEMBERS)
        written = cast(Tree, tree.get("policies", {}))
        self._policies_read = {
            group: (each, unknown_members(cast(Tree, written[group]), _POLICY_MEMBERS)) for group, each in policies.items()
        }


def _policy(tree: Tree) -> RetryPolicy:
    delays_s = tuple(each / 1000 for each in cast("list[int]", tree["delays_ms"]))
    return RetryPolicy(delays_s, cast("int | None", tree["attempts"]), cast("str | None", tree["dead_letters"]))


def _attempts(tree: Tree) -> dict[str, dict[tuple[str, int], QueueAttempts]]:
    attempts: dict[str, dict[tuple[str, int], QueueAttempts]] = {}
    for group, failed in cast("dict[str, list[tuple[str, int, int, int]]]", tree.get("attempts", {})).items():
        for topic, queue, offset, count in failed:
            each = attempts.setdefault(group, {}).setdefault((topic, queue), QueueAttempts())
            each.failed[_offset(offset)] = _offset(count)
    for group, died in cast("dict[str, list[tuple[str, int, int | None, *tuple[int, ...]]]]", tree.get("deaths", {})).items():
        for topic, queue, killer, *deaths in died:
            each = attempts.setdefault(group, {}).setdefault((topic, queue), QueueAttempts())
            each.deaths, each.killer = list(map(_offset, deaths)), None if killer is None else _offset(killer)
    return attempts


def _replayed(tree: Tree) -> dict[str, tuple[int, list[tuple[int, int]]]]:
    found = cast("dict[str, tuple[int, *tuple[tuple[int, int], ...]]]", tree.get("replayed", {}))
    return {
        group: (_offset(number), [(_offset(first), _offset(end)) for first, end in ranges])
        for group, (number, *ranges) in found.items()
    }


def _departures(tree: Tree) -> dict[str, dict[str, tuple[str, int]]]:
    found = cast("dict[str, list[tuple[str, str, int]]]", tree.get("departures", {}))
    return {group: {str(member): (str(how), _offset(at)) for member, how, at in rows} for group, rows in found.items()}


def _offset(value: object) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is not an offset")
    return value
