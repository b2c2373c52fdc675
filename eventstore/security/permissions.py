"""Permissions: what a request needs, and what an identity was granted. A grant is for names that begin with a prefix.

Which names these are depends on the permission: aggregate ids, types of commands, topics, groups. A request about several names
needs the permission on each, one about everything (a read without a prefix) on the empty prefix, which is every name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from eventstore.errors import InvalidArgument, PermissionDenied
from eventstore.fields import RESERVED, reserved_id_refused
from eventstore.records.timer_record import commands_in


class Permission(StrEnum):
    """What may be permitted. The comment beside each says what its names are."""

    APPEND = "append"  # aggregates
    READ = "read"  # aggregates: on everything also the server's own, such as `$audit`
    SUBSCRIBE = "subscribe"  # aggregates: as above
    COMMAND = "command"  # types of commands
    PARK = "park"  # aggregates: recording which of their events a worker's reactions have parked
    SEND = "send"  # topics
    CONSUME = "consume"  # topics
    JOIN = "join"  # groups: being a member, with their retry topics and dead letters
    TOPICS = "topics"  # topics: creating, changing and deleting them
    GROUPS = "groups"  # groups: resetting, replaying and deleting them, their retries
    REACTIONS = "reactions"  # reactions: retrying, skipping, replaying
    TIMERS = "timers"  # aggregates: running, moving and cancelling their timers; on everything also confirming the clock
    SUBJECTS = "subjects"  # subjects: having their keys, to store and to read data about them
    ERASE = "erase"  # subjects: destroying their keys
    ALARMS = "alarms"  # alarms: silencing and testing them
    BACKUP = "backup"  # being told where the files are, and up to where they count; of everything
    STATS = "stats"  # figures, lists and metrics; of everything
    CLUSTER = "cluster"  # being a node of the cluster


EVERYTHING: Final = ""
"""The prefix of every name."""
_READING: Final = (None, Permission.READ, Permission.SUBSCRIBE, Permission.CONSUME, Permission.STATS)
_RECORDED: Final = (
    Permission.TOPICS,
    Permission.GROUPS,
    Permission.REACTIONS,
    Permission.TIMERS,
    Permission.ALARMS,
    Permission.BACKUP,
    Permission.ERASE,
)
_OF_GROUPS: Final = ("retry:", "dead:")

Wanted = Iterable[tuple[Permission, str | None]]
"""Permissions, each with the name that it is needed on; None: on at least one name, whichever it is."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What a kind of request needs.

    Attributes:
        wanted: returns the permissions and names that one request needs.
        alone: each row is checked by the code that takes it, so that a row refuses only itself.
        writes: the field with a topic to which the server writes from then on. That needs `send` on the topic, and `topics` if
            there is none, unless the request leaves all as it is.
    """

    permission: Permission | None
    wanted: Callable[[Any], Wanted] | None = None
    alone: bool = False
    writes: str | None = None
    of: str = ""

    @property
    def changes(self) -> bool:
        """Whether the request may change something."""
        return self.permission not in _READING

    @property
    def recorded(self) -> bool:
        """Whether the request is in the audit trail: it changes what cannot be undone, or how data are treated."""
        return self.permission in _RECORDED


ANYONE: Final = Needs(None)
"""For requests that every identity may make."""


def on(permission: Permission, field: str | None = None) -> Needs:
    """Needs the permission on the name in a field of the request; without a name in it, or without a field, on everything."""
    if field is None:
        return Needs(permission, lambda _: ((permission, EVERYTHING),))
    return Needs(permission, lambda request: ((permission, getattr(request, field) or EVERYTHING),), of=field)


def on_some(permission: Permission) -> Needs:
    """Needs the permission on at least one name, whichever it is."""
    return Needs(permission, lambda _: ((permission, None),), of="any name")


def on_told(permission: Permission, field: str) -> Needs:
    """Needs to see figures, and the permission on the name in a field: what is told of it is more than figures."""

    def wanted(request: Any) -> Wanted:
        return (Permission.STATS, EVERYTHING), (permission, getattr(request, field))

    return Needs(Permission.STATS, wanted, of=f"everything, `{permission.value}` on {field}")


def on_rows(permission: Permission) -> Needs:
    """Needs the permission on each row, which is checked when it is taken."""
    return Needs(permission, alone=True, of="the name of each row")


def on_writes(*, reads: bool = False) -> Needs:
    """Needs `append` on each aggregate that is written, `read` on each that is only asserted: a refusal says its version.
    `reads`: and `read` on everything, since a refusal tells what there is.
    """

    def wanted(request: Any) -> Wanted:
        if reads:
            yield Permission.READ, EVERYTHING
        for aggregate_id, _, events in request.aggregates:
            yield Permission.READ if events is None else Permission.APPEND, aggregate_id
            for command in commands_in(events or b""):
                yield Permission.COMMAND, command

    others = "everything" if reads else "each that is not"
    return Needs(Permission.APPEND, wanted, of=f"each aggregate that is written, `read` on {others}")


def on_each(permission: Permission, field: str) -> Needs:
    """Needs the permission on the name that each row of a field begins with."""

    def wanted(request: Any) -> Wanted:
        return ((permission, row[0]) for row in getattr(request, field))

    return Needs(permission, wanted, of=f"each of the {field}")


def on_all(permission: Permission, field: str) -> Needs:
    """Needs the permission on each name in a field."""
    return Needs(
        permission, lambda request: ((permission, name) for name in getattr(request, field)), of=f"each of the {field}"
    )


def on_filtered(permission: Permission) -> Needs:
    """Needs the permission on what a filter lets through: one aggregate, or all aggregates with a prefix."""

    def wanted(request: Any) -> Wanted:
        return ((permission, request.aggregate_id or request.aggregate_prefix or EVERYTHING),)

    return Needs(permission, wanted, of="aggregate id or prefix of the filter")


def on_topics(field: str) -> Needs:
    """Needs to consume the topic that each row of a field begins with, and to join the group of the request, if any."""

    def wanted(request: Any) -> Wanted:
        if request.group is not None:
            yield Permission.JOIN, request.group
        for row in getattr(request, field):
            yield of_topic(row[0])

    return Needs(Permission.CONSUME, wanted, of="each topic, and `join` on the group")


def on_topic() -> Needs:
    """Needs to consume the topic of the request."""
    return Needs(Permission.CONSUME, lambda request: (of_topic(request.topic),), of="topic")


def of_topic(topic: str) -> tuple[Permission, str]:
    """Returns what consuming a topic needs: the retries and dead letters of a group are its members'."""
    for prefix in _OF_GROUPS:
        if topic.startswith(prefix):
            return Permission.JOIN, topic.removeprefix(prefix)
    return Permission.CONSUME, topic


class Grants:
    """What an identity may do: for each permission the prefixes of the names."""

    __slots__ = ("_prefixes",)

    def __init__(self, prefixes: Mapping[Permission, Sequence[str]]) -> None:
        self._prefixes = {permission: tuple(sorted(set(each))) for permission, each in prefixes.items()}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Grants) and self._prefixes == other._prefixes

    def __hash__(self) -> int:
        return hash(tuple(sorted(self._prefixes.items())))

    def allows(self, permission: Permission, name: str = EVERYTHING) -> bool:
        """Whether the identity may do this to this name; to everything without one."""
        return name.startswith(self._prefixes.get(permission, ()))

    def check(self, permission: Permission, name: str | None) -> None:
        """Raises PermissionDenied. `name` None: not permitted on any name."""
        prefixes = self._prefixes.get(permission, ())
        if not (prefixes if name is None else name.startswith(prefixes)):
            raise denied(permission)

    def check_request(
        self,
        needs: Needs,
        request: object,
        has_topic: Callable[[str], bool] = lambda _: False,
        changes: Callable[[Any], bool] = lambda _: True,
    ) -> None:
        """Raises PermissionDenied. `has_topic`: whether a topic exists. `changes`: whether a request that has the server write
        changes anything. Both are asked last, so that a client without the other permissions learns nothing of it.
        """
        if needs.wanted is not None:
            for permission, name in needs.wanted(request):
                self.check(permission, name)
        written = None if needs.writes is None else getattr(request, needs.writes)
        if written is not None and changes(request):
            self.check(Permission.SEND, written)
            if not has_topic(written):
                self.check(Permission.TOPICS, written)

    def refused_appends(self, aggregate_ids: Sequence[str]) -> dict[int, PermissionDenied | InvalidArgument]:
        """Returns the error of each aggregate that may not be appended to, by its place. No grant permits the server's own."""
        prefixes = self._prefixes.get(Permission.APPEND, ())
        return {
            place: reserved_id_refused(name) if name.startswith(prefixes) else denied(Permission.APPEND)
            for place, name in enumerate(aggregate_ids)
            if not name.startswith(prefixes) or name.startswith(RESERVED)
        }

    def refused_timers(self, commits: Sequence[Sequence[Any]]) -> dict[int, PermissionDenied]:
        """Returns the error of each commit that sets a timer for a command that may not be sent, by its place."""
        return {
            place: denied(Permission.COMMAND)
            for place, commit in enumerate(commits)
            if not all(self.allows(Permission.COMMAND, each) for each in commands_in(commit[4]))
        }


def denied(permission: Permission) -> PermissionDenied:
    """Returns the error, which says what is missing and nothing of what exists."""
    return PermissionDenied(
        f"this needs the permission {permission.value!r} on what it names, or, without a name or prefix, on everything",
        permission=permission.value,
    )
