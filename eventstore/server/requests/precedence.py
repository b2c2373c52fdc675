"""Decisions that others keep coming before: each goes first in its slots.

A decision is a commit that is refused if anything has come up that it did not know: one with a condition by query, or of
several aggregates. It is read, made and sent again after each conflict, and clients that write without a pause are always
faster. So the store counts its conflicts, by aggregate and command id. After some of them, requests that write in its slots
wait until the decision is stored, refused or rejected, or a second has passed. Then they are taken, in the order of arrival,
and nothing is held in these slots for as long as it was before: whoever else writes there keeps half of the time. What a
connection sends after such a request for one of its aggregates waits with it, so that events of an aggregate keep their order.

Nothing looks at requests while nothing is held. What a command of this process has decided already is not held.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import trio

from eventstore.errors import ConditionFailed, Diverged, EventStoreError
from eventstore.metrics import Metric, MetricSource, counter
from eventstore.protocol import encode_error
from eventstore.protocol.request_declaration import Request
from eventstore.protocol.requests import Append, CommitJointly, CommitUnless, Send
from eventstore.records.raw_commit import JointWrites
from eventstore.records.slots import slot_of
from eventstore.server.feature import Feature, Route
from eventstore.server.mailbox_wiring import ServerEntry
from eventstore.server.net.connection import ServerConnection
from eventstore.server.net.gate import Gate
from eventstore.server.requests.commands import CommandReplies, WaitingCommands
from eventstore.store.append import CONFLICT, REFUSED, AppendOutcome, NewCommit
from eventstore.store.committer import EventCommitter

_log: Final = logging.getLogger(__name__)
CONFLICTS_MAX: Final = 4
"""A decision goes first after so many."""
HELD_S_MAX: Final = 1.0
_COUNTED_MAX: Final = 1024  # decisions whose conflicts are counted, those with the latest ones
_WRITES: Final = (Append, CommitJointly, CommitUnless, Send)

Decided = tuple[str, str]
"""Aggregate, of several the first, and command id."""


@dataclass(slots=True, eq=False)
class _HeldRequest:
    """`size`: see `WaitingCommands`."""

    route: Route
    connection: ServerConnection
    request_id: int
    request: Any
    request_bytes: int
    size: int = 0


@dataclass(slots=True, eq=False)
class _Precedence:
    """`behind`: the aggregates of the requests that wait, each with the connection: later requests do not pass these."""

    decision: Decided
    slots: frozenset[int]
    began: float
    requests: list[_HeldRequest] = field(default_factory=list)
    behind: set[tuple[ServerConnection, str]] = field(default_factory=set)
    settled: bool = False


class Precedence:
    """Counts conflicts, and holds back requests for decisions that had too many.

    Attributes:
        given: how often a decision went first.
        expired: how often it was not settled in time.
        held: requests that had to wait.
    """

    def __init__(
        self,
        gate: Gate,
        committer: EventCommitter,
        waiting: WaitingCommands,
        replies: CommandReplies,
        end_turn: Callable[[], None],
    ) -> None:
        """`end_turn`: hands over what the routes have collected."""
        self._gate = gate
        self._committer = committer
        self._waiting = waiting
        self._replies = replies
        self._end_turn = end_turn
        self._conflicts: OrderedDict[Decided, int] = OrderedDict()
        self._by_slot: dict[int, _Precedence] = {}
        self._by_decision: dict[Decided, _Precedence] = {}
        self._rests: dict[int, float] = {}
        self._wake = trio.Event()
        self._routes: dict[type[Request], Route] = {}
        self._own: dict[type[Request], Route] = {}
        self.given = self.expired = self.held = 0
        self.feature = Feature(run=self.run, metrics=[MetricSource(PRECEDENCE_METRICS, lambda: self)])
        committer.engine.appender.on_conflict = self.conflicted

    def intercept(self, routes: dict[type[Request], Route]) -> None:
        """Exchanges the routes of requests that write in this dictionary, while something is held."""
        self._routes, self._own = routes, {kind: routes[kind] for kind in _WRITES if kind in routes}

    def conflicted(self, names: str | JointWrites, command_id: str) -> None:
        """Counts a conflict of a decision, by its aggregates."""
        first, routed_by = (names, [names]) if isinstance(names, str) else (names.writes[0][0], names.routed_by)
        decision = first, command_id
        if decision in self._by_decision:
            return
        count = self._conflicts.pop(decision, 0) + 1
        if count >= CONFLICTS_MAX and self._begin(decision, frozenset(map(slot_of, routed_by))):
            return
        self._conflicts[decision] = count
        if len(self._conflicts) > _COUNTED_MAX:
            self._conflicts.popitem(last=False)

    async def run(self) -> None:
        """Takes what was held back as soon as that may be, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            while self._by_decision:
                now = trio.current_time()
                for each in [each for each in self._by_decision.values() if each.settled or now >= each.began + HELD_S_MAX]:
                    self._end(each, now)
                if self._by_decision:
                    due = min(each.began for each in self._by_decision.values()) + HELD_S_MAX
                    with trio.move_on_at(due):
                        await self._wake.wait()
                    self._wake = trio.Event()

    def _begin(self, decision: Decided, slots: frozenset[int]) -> bool:
        now = trio.current_time()
        if not slots.isdisjoint(self._by_slot) or any(self._rests.get(slot, now) > now for slot in slots):
            return False
        self._rests = {slot: until for slot, until in self._rests.items() if until > now}
        given = self._by_decision[decision] = _Precedence(decision, slots, now)
        self._by_slot.update(dict.fromkeys(slots, given))
        self.given += 1
        self._routes.update({kind: self._checked(route) for kind, route in self._own.items()})
        self._committer.on_outcomes, self._replies.on_settled = self._stored, self._handled
        self._wake.set()
        return True

    def _end(self, given: _Precedence, now: float) -> None:
        del self._by_decision[given.decision]
        for slot in given.slots:
            del self._by_slot[slot]
            self._rests[slot] = 2 * now - given.began
        self.expired += not given.settled
        if not self._by_decision:
            self._routes.update(self._own)
            self._committer.on_outcomes = self._replies.on_settled = None
        for each in given.requests:
            self._waiting.remove(each)
            self._gate.settle(each.connection)
            if not each.connection.closed:
                each.connection.request_bytes = each.request_bytes
                self._take(each)
        self._end_turn()
        self._gate.flush()

    def _take(self, held: _HeldRequest) -> None:
        try:
            held.route(held.connection, held.request_id, held.request)
        except EventStoreError as error:
            self._gate.send(held.connection, encode_error(held.request_id, error))
        except Exception:  # a bug of ours, which affects only this connection
            _log.exception("a request that was held back failed; its connection is closed")
            self._gate.drop(held.connection)

    def _checked(self, route: Route) -> Route:
        def checked(connection: ServerConnection, request_id: int, request: Any) -> None:
            names, ids = _written_by(request)
            if (given := self._before(connection, names, ids)) is None:
                route(connection, request_id, request)
                return
            held = _HeldRequest(route, connection, request_id, request, connection.request_bytes)
            self._waiting.add(held, held.request_bytes)
            self._gate.owe(connection)
            given.requests.append(held)
            given.behind.update((connection, name) for name in names)
            self.held += 1

        return checked

    def _before(self, connection: ServerConnection, names: set[str], ids: set[str]) -> _Precedence | None:
        """Returns the decision that goes before a request; None if it need not wait, or is of such a decision."""
        own = {(connection, name) for name in names}
        given = next((each for each in self._by_decision.values() if not own.isdisjoint(each.behind)), None)
        if given is None:
            given = next((each for name in names if (each := self._by_slot.get(slot_of(name))) is not None), None)
        return None if given is None or given.decision[1] in ids else given

    def _settled(self, decisions: Iterable[Decided]) -> None:
        """Ends the precedence of these decisions: they are stored, or never will be."""
        for each in decisions:
            if (found := self._by_decision.get(each)) is not None:
                found.settled = True
                self._wake.set()

    def _stored(self, commits: Sequence[NewCommit], outcomes: Sequence[AppendOutcome]) -> None:
        for commit, (status, result, _) in zip(commits, outcomes, strict=True):
            outdated = status == CONFLICT or (status == REFUSED and isinstance(result, ConditionFailed | Diverged))
            if not outdated:
                name = commit[0]
                self._settled([(name if isinstance(name, str) else name.writes[0][0], commit[2])])

    def _handled(self, entries: Sequence[ServerEntry]) -> None:
        """Takes commands that were handled in this process: a decision may have been rejected."""
        ids = {entry.command_id for entry in entries}
        self._settled([each for each in self._by_decision if each[1] in ids])


def _written_by(request: Any) -> tuple[set[str], set[str]]:
    """Returns the aggregates that a request may write to, and the command ids."""
    if isinstance(request, Append):
        written = [(commit[0], commit[2]) for commit in request.commits]
    elif isinstance(request, Send):
        written = [(row[1], row[2]) for row in request.commands]
    else:
        written = [(name, request.command_id) for name, _, events in request.aggregates if events is not None]
    named = [each for each in written if isinstance(each[0], str)]  # others are refused by their route
    return {name for name, _ in named}, {command_id for _, command_id in named}


PRECEDENCE_METRICS: Final[tuple[Metric[Precedence], ...]] = (
    counter(
        "decisions_first",
        "times that a decision went first in its slot, after conflicts with others",
        lambda precedence: precedence.given,
        "it grows fast: many decide on what others write all the time; give them scopes of their own",
    ),
    counter(
        "decisions_first_expired",
        "of these, times that the decision was not there again within a second",
        lambda precedence: precedence.expired,
        "it grows: handlers are slow, their queries find too much, or clients have given up",
    ),
    counter("decisions_first_held", "requests that waited for such decisions", lambda precedence: precedence.held),
)
