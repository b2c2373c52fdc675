"""Runs the reactions of a domain in the server: from a subscription of the store into the server's mailboxes."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol

import trio

from eventstore.chunks.files import Files
from eventstore.domain.domain import Domain
from eventstore.domain.reactions.checkpoint import FileCheckpoint, ReactionStore
from eventstore.domain.reactions.reaction import SendCommand, TimerSetter
from eventstore.domain.reactions.reactor import ReactionRun, Reactor
from eventstore.errors import EventStoreError, InvalidArgument
from eventstore.failures import text_of
from eventstore.fields import shown
from eventstore.following.parking import parked_note
from eventstore.protocol.reaction_info import FollowedChain, ParkedEvent, ReactionInfo

_PAUSE_S: Final = 5.0
_log = logging.getLogger(__name__)


class Reactions(Protocol):
    """The reactions of a server or worker, as operators see them. For the methods see `ReactionRunner`."""

    @property
    def attention(self) -> str | None: ...

    @property
    def passed_over(self) -> int:
        """How many records of what is parked are not of their form."""
        ...

    def progress(self) -> list[ReactionInfo]: ...

    def parked(self, name: str) -> list[ParkedEvent]: ...

    async def retry(self, name: str, aggregate_id: str | None, who: str, why: str) -> int: ...

    async def skip(self, name: str, aggregate_id: str, who: str, why: str) -> int: ...

    async def replay(self, name: str, sequence: int, who: str, why: str) -> int: ...


class ReactionsByName(ABC):
    """Several that have reactions: what is asked about one goes to whom its name says."""

    @abstractmethod
    def _named(self, name: str) -> tuple[Reactions, str]:
        """Returns who has this one, and its name there. Raises InvalidArgument: nobody has."""

    def parked(self, name: str) -> list[ParkedEvent]:
        owner, own = self._named(name)
        return owner.parked(own)

    async def retry(self, name: str, aggregate_id: str | None, who: str, why: str) -> int:
        owner, own = self._named(name)
        return await owner.retry(own, aggregate_id, who, why)

    async def skip(self, name: str, aggregate_id: str, who: str, why: str) -> int:
        owner, own = self._named(name)
        return await owner.skip(own, aggregate_id, who, why)

    async def replay(self, name: str, sequence: int, who: str, why: str) -> int:
        owner, own = self._named(name)
        return await owner.replay(own, sequence, who, why)


class ReactionRunner:
    """`failure`: why no reaction runs, until they do."""

    def __init__(
        self,
        store: ReactionStore,
        checkpoint: Path,
        domain: Domain,
        send: SendCommand,
        set_timer: TimerSetter | None = None,
        files: Files | None = None,
        *,
        suffix: str = "",
    ) -> None:
        """`suffix`: of the names in `progress`."""
        self._suffix = suffix
        self._store = store
        self._domain = domain
        self._reactor = Reactor(store, domain, send, FileCheckpoint(checkpoint, files), set_timer=set_timer)
        self._scope = trio.CancelScope()
        self.failure: str | None = None

    async def run(self) -> None:
        """Reacts until cancelled."""
        if not self._domain.reactions:
            return
        while True:
            with trio.CancelScope() as self._scope:
                try:
                    await self._reactor.run()
                except Exception as error:  # such as a checkpoint that cannot be read; the server keeps serving
                    self.failure = text_of(error) or type(error).__name__
                    trace = None if isinstance(error, EventStoreError | OSError) else error
                    _log.error("reactions are tried again in %g s: %s", _PAUSE_S, self.failure, exc_info=trace)
                await trio.sleep(_PAUSE_S)
            self.failure = None

    def begin_again(self) -> None:
        """Continues all reactions from their checkpoints: what they hold in memory may be another shard's by now."""
        self._scope.cancel()

    # ---- for operators

    @property
    def attention(self) -> str | None:
        """What an operator has to do about the reactions, if anything. Quotes no error of one, which may have data of events in
        it: those who see figures may not read events.
        """
        if (failure := self.failure or self._reactor.save_failure) is not None:
            return f"reactions: {failure}"
        for each in self.progress():
            if each.state != "running":
                place = f"{each.state} after sequence {each.position}"
                return f"reaction {each.name!r} is {place}; `eventstore reactions list` says why"
            if each.parked:
                return f"reaction {each.name!r} {parked_note(each.name, each.parked)}"
        return None

    @property
    def passed_over(self) -> int:
        return self._reactor.parked.passed_over

    def progress(self) -> list[ReactionInfo]:
        """Returns how far each reaction is, by name."""
        end = 0 if self._reactor.feed is None else self._reactor.feed.position
        return [
            run.follower.progress(name + self._suffix, run.reaction.event.name, end, len(run.parked), run.through)
            for name, run in sorted(self._reactor.runs.items())
        ]

    def parked(self, name: str) -> list[ParkedEvent]:
        """Returns what a reaction has parked. Raises InvalidArgument if there is no such reaction."""
        return list(self._run_of(name).parked)

    async def retry(self, name: str, aggregate_id: str | None, who: str, why: str) -> int:
        """Handles what is parked, of one aggregate or of all, in order; returns how many are done. Raises InvalidArgument."""
        return await self._run_of(name).retry(aggregate_id, who, why)

    async def skip(self, name: str, aggregate_id: str, who: str, why: str) -> int:
        """Takes the first parked event of an aggregate off, then handles those after it; returns how many are off.

        Raises:
            InvalidArgument: there is no such reaction.
        """
        return await self._run_of(name).retry(aggregate_id, who, why, skip=True)

    async def replay(self, name: str, sequence: int, who: str, why: str) -> int:
        """Lets a reaction continue with the event of this sequence, or the next one; returns the sequence it stands at.

        Raises:
            InvalidArgument: there is no such reaction.
        """
        self._run_of(name)
        note = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {who}: {why}"
        mark = await self._reactor.replay(name, sequence - 1, note)
        _log.warning("reaction %s is replayed after sequence %d by %s", name, mark.sequence, ascii(f"{who}: {why}"))
        return mark.sequence

    async def followed(self, sequence: int | None, correlation_id: str | None) -> FollowedChain:
        """See `Reactor.followed`."""
        return await self._reactor.followed(sequence, correlation_id)

    def _run_of(self, name: str) -> ReactionRun:
        run = self._reactor.runs.get(name)
        if run is None:
            names = ", ".join(sorted(self._reactor.runs)[:20]) or "none"
            raise InvalidArgument(
                f"there is no reaction {shown(name)}; there are: {names}", field="reaction", value=shown(name)
            )
        return run
