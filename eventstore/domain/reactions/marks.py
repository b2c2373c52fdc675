"""Keeps the marks of all reactions durable, and checks them against the store at the start."""

from __future__ import annotations

from collections.abc import Callable

import anyio

from eventstore.domain.reactions.checkpoint import ReactionCheckpoint, ReactionMarks
from eventstore.domain.reactions.feed import ReactionStore
from eventstore.domain.reactions.reaction import Reaction
from eventstore.domain.worker_thread import on_worker_thread
from eventstore.errors import Diverged
from eventstore.following.checkpoint import Checkpoint
from eventstore.following.log import all_durable, confirmed, event_at, uuid_and_last_sequence

_NONE = "none"  # the identity of an event that was missing when it was first looked for; no later event has it


class MarkKeeper:
    """The marks in memory, and their way to the checkpoint.

    A save waits until everything is durable that was in the store before it began: the events that the marks stand at, the
    records of what was parked, and the events of the commands that were sent. One save serves all marks that moved meanwhile.
    """

    def __init__(self, store: ReactionStore, checkpoint: ReactionCheckpoint) -> None:
        self._store = store
        self._checkpoint = checkpoint
        self._marks = ReactionMarks()
        self._changes = self._saved = 0
        self._changed = anyio.Event()
        self._saving = anyio.Lock()
        self._uuid = ""

    async def load(self) -> int:
        """Reads the checkpoint; returns the sequence after which to look for what is parked."""
        self._marks = await on_worker_thread(self._checkpoint.load)
        self._uuid, end = await uuid_and_last_sequence(self._store)
        return self._marks.parked_after if self._marks.store == self._uuid and self._marks.parked_after <= end else 0

    async def mark_of(self, reaction: Reaction) -> Checkpoint:
        """Returns where a reaction stands; a new one where it wants to start.

        Raises:
            Diverged: the store has not the event that it stands at.
        """
        mark = self._marks.reactions.get(reaction.name, self._marks.others)
        if mark is None:
            mark = await self._first_mark(reaction)
        elif mark.sequence:
            mark = await self._checked(reaction.name, mark)
        self.keep(reaction.name, mark)
        return mark

    async def _first_mark(self, reaction: Reaction) -> Checkpoint:
        if reaction.start == "beginning":
            return Checkpoint(0)
        if reaction.start == "end":
            return await self.mark_at((await uuid_and_last_sequence(self._store))[1])
        return await self.mark_at(int(reaction.start) - 1)

    async def mark_at(self, sequence: int) -> Checkpoint:
        """Returns a mark at this sequence, or at the last event if there are fewer."""
        sequence = min(sequence, (await uuid_and_last_sequence(self._store))[1])
        event = await event_at(self._store, sequence) if sequence else None
        return Checkpoint(sequence) if event is None else Checkpoint.at(event)

    async def _checked(self, name: str, mark: Checkpoint) -> Checkpoint:
        what = f"the checkpoint of reaction {name!r}"
        next_step = (
            f"set it back with `eventstore reactions replay {name} --from SEQUENCE`, to the first event that it did not see or "
            "that is new: commands that are in the store take effect only once"
        )
        if self._marks.store not in (None, self._uuid):
            raise Diverged(
                f"{what} was made from store {self._marks.store}, and this is {self._uuid}; {next_step}",
                what=what,
                sequence=mark.sequence,
            )
        found = await confirmed(self._store, what, mark, next_step)
        if found is None:
            self._marks.reactions[name] = Checkpoint(mark.sequence, _NONE)
            self._note_change()
            mark.check(what, None, next_step)
        return found or mark

    def keep(self, name: str, mark: Checkpoint, replayed: str | None = None) -> None:
        """Moves a reaction's mark; `run` saves it. `replayed`: by whom, when and why, if not by its progress."""
        if self._marks.reactions.get(name) != mark or replayed is not None:
            self._marks.reactions[name] = mark
            self._marks.replayed.pop(name, None)
            if replayed is not None:
                self._marks.replayed[name] = replayed
            self._note_change()

    def _note_change(self) -> None:
        self._changes += 1
        self._changed.set()

    async def run(self, recorded_after: Callable[[int], int], on_saved: Callable[[], None]) -> None:
        """Saves what moved, until cancelled. Raises the errors of a save."""
        while True:
            await self.save(recorded_after)
            on_saved()
            await self._changed.wait()
            self._changed = anyio.Event()

    async def save(self, recorded_after: Callable[[int], int]) -> None:
        """Saves all marks as they are now."""
        async with self._saving:
            if self._saved == self._changes:
                return
            changes, reactions, replayed = self._changes, dict(self._marks.reactions), dict(self._marks.replayed)
            parked_after = recorded_after(min((mark.sequence for mark in reactions.values()), default=0))
            await all_durable(self._store)
            marks = ReactionMarks(self._uuid, parked_after, reactions, replayed=replayed)
            await on_worker_thread(self._checkpoint.save, marks)
            self._saved = changes
