"""Checkpoints of a domain's reactions, compared with the store: one small JSON document, whose previous copy is kept.

Each reaction has a mark, its checkpoint at the last event that it handled. A document of the last version, which had one
sequence for all reactions, is read as well.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol, Self

import anyio

from eventstore.chunks.documents import PREVIOUS, Tree, read_tree, write_document
from eventstore.chunks.files import NO_SPACE, Files, OsFiles
from eventstore.domain.reactions.reaction import Reaction
from eventstore.domain.worker_thread import on_worker_thread
from eventstore.errors import Corrupt, Diverged, FolderRefused, ReadFailed, StorageFull
from eventstore.following.checkpoint import Checkpoint
from eventstore.following.log import EventSubscription, Followable, all_durable, confirmed, event_at, uuid_and_last_sequence
from eventstore.model import Committed, Event, NewEvent
from eventstore.position import After

_FORMAT: Final = 2
_NONE: Final = "none"  # the identity of an event that was missing when it was first looked for; no later event has it


class ReactionStore(Followable, Protocol):
    """The part of a store that reactions need: embedded, or a client."""

    def subscribe(
        self, after: After = 0, types: Iterable[str] | None = None, aggregate_prefix: str | None = None
    ) -> EventSubscription: ...

    def read(self, aggregate_id: str, from_version: int = 1, to_version: int | None = None) -> AsyncIterator[Event]: ...

    async def append_reserved(self, aggregate_id: str, event: NewEvent) -> Committed: ...

    async def check_parking(self) -> None:
        """Raises PermissionDenied."""
        ...


@dataclass(frozen=True, slots=True)
class ReactionMarks:
    """The document. `store`: uuid of the store, None if not known. `parked_after`: nothing that is parked was recorded up to
    this sequence. `others`: the mark of reactions that are not in `reactions`, from a document of the last version.
    `replayed`: who moved a mark last, when and why; until the reaction has handled something since.
    """

    store: str | None = None
    parked_after: int = 0
    reactions: dict[str, Checkpoint] = field(default_factory=dict)
    others: Checkpoint | None = None
    replayed: dict[str, str] = field(default_factory=dict)

    def of_each(self, names: Iterable[str]) -> Self:
        """Returns the same marks of these reactions, each by its name, as a document has them."""
        if self.others is None:
            return self
        return replace(self, reactions={**dict.fromkeys(names, self.others), **self.reactions}, others=None)

    def inherited(self, through: int) -> Self:
        """Returns the marks of a log that has the same events up to `through`."""
        reactions = {name: each.inherited(through) for name, each in self.reactions.items()}
        others = None if self.others is None else self.others.inherited(through)
        return replace(self, parked_after=min(self.parked_after, through), reactions=reactions, others=others)


class ReactionCheckpoint(Protocol):
    """Where the marks are kept. The methods block; `save` is durable on return."""

    def load(self) -> ReactionMarks: ...

    def save(self, marks: ReactionMarks) -> None: ...


class FileCheckpoint:
    """The marks in the file `path`. Its methods block."""

    def __init__(self, path: str | Path, files: Files | None = None) -> None:
        self._path = Path(path)
        self._files = files or OsFiles()

    def load(self) -> ReactionMarks:
        """Returns what was saved; no marks if there is no file.

        Raises:
            Corrupt: the file is damaged.
            ReadFailed: the operating system refuses to read it.
        """
        try:
            document = read_tree(self._files, self._path)
        except FileNotFoundError:
            return ReactionMarks()
        except Corrupt as error:
            raise self._corrupt(str(error.what).partition(";")[0]) from None
        except OSError as error:
            raise ReadFailed(
                f"{self._path}: the checkpoint of the reactions cannot be read ({error.strerror}); check that it is a "
                "file, its owner and mode",
                file=str(self._path),
            ) from error
        return self._parsed(document)

    def save(self, marks: ReactionMarks) -> None:
        """Writes the marks durably.

        Raises:
            StorageFull, FolderRefused: they cannot be written; the old checkpoint remains.
        """
        try:
            write_document(self._files, self._path, _document(marks))
        except OSError as error:
            if error.errno in NO_SPACE:
                raise StorageFull(
                    f"{self._path}: no space for the checkpoint of the reactions ({error.strerror}); free some space",
                    path=str(self._path),
                ) from error
            step = "check that its folder exists, its owner and mode, and that it is mounted writable"
            raise FolderRefused(
                str(self._path), f"the checkpoint of the reactions cannot be written ({error.strerror}); {step}"
            ) from error

    def _parsed(self, document: Tree) -> ReactionMarks:
        if "format" not in document:  # of the last version
            return ReactionMarks(others=Checkpoint(self._count(document, "sequence")))
        if document["format"] != _FORMAT:
            raise FolderRefused(
                str(self._path), f"format {document['format']}; this program knows format {_FORMAT}. Use a newer one"
            )
        store, reactions = document.get("store"), document.get("reactions")
        if not isinstance(store, str | None) or not isinstance(reactions, dict):
            raise self._corrupt("it has no store or no reactions")
        marks = ReactionMarks(store, self._count(document, "parked_after"))
        for name, row in reactions.items():
            event, replayed = (row.get("event"), row.get("replayed")) if isinstance(row, dict) else (0, 0)
            if not isinstance(row, dict) or not isinstance(event, str | None) or not isinstance(replayed, str | None):
                raise self._corrupt("a reaction has no mark")
            marks.reactions[name] = Checkpoint(self._count(row, "sequence"), event)
            if replayed is not None:
                marks.replayed[name] = replayed
        return marks

    def _count(self, document: Tree, name: str) -> int:
        value = document.get(name)
        if type(value) is not int or value < 0:
            raise self._corrupt(f"it has no {name}")
        return value

    def _corrupt(self, what: str) -> Corrupt:
        return Corrupt(
            str(self._path),
            0,
            f"{what}; replace it with its previous copy, {self._path.name}{PREVIOUS}, or remove it to begin with the first "
            "event: commands that are sent again take effect only once",
        )


def _document(marks: ReactionMarks) -> Tree:
    reactions: Tree = {
        name: {"sequence": mark.sequence, "event": mark.identity, "replayed": marks.replayed.get(name)}
        for name, mark in marks.reactions.items()
    }
    return {"format": _FORMAT, "store": marks.store, "parked_after": marks.parked_after, "reactions": reactions}


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

    def sequence_of(self, name: str) -> int:
        """Returns where the mark of a reaction is."""
        return self._marks.reactions[name].sequence

    def keep(self, name: str, mark: Checkpoint, replayed: str | None = None) -> None:
        """Moves a reaction's mark; `run` saves it. `replayed`: by whom, when and why, if not by its progress."""
        before = self._marks.reactions.get(name)
        if before != mark or replayed is not None:
            self._marks.reactions[name] = mark
            if replayed is not None:
                self._marks.replayed[name] = replayed
            elif before is None or before.sequence != mark.sequence:  # not if only the identity is known now
                self._marks.replayed.pop(name, None)
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
