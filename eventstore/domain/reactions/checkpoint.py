"""Checkpoints of a domain's reactions: one small JSON document, replaced atomically; the previous copy is kept.

Each reaction has a mark, its checkpoint at the last event that it handled. A document of the last version, which had one
sequence for all reactions, is read as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol, Self

from eventstore.chunks.documents import PREVIOUS, Tree, read_tree, write_document
from eventstore.chunks.files import NO_SPACE, Files, OsFiles
from eventstore.errors import Corrupt, FolderRefused, ReadFailed, StorageFull
from eventstore.following.checkpoint import Checkpoint

_FORMAT: Final = 2


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
