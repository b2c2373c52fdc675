"""Checkpoint of the reactions: a sequence in a small JSON file, replaced atomically; the previous copy is kept."""

from __future__ import annotations

from pathlib import Path

from eventstore.chunks.documents import PREVIOUS, read_document, write_document
from eventstore.chunks.files import NO_SPACE, Files, OsFiles
from eventstore.errors import Corrupt, FolderRefused, ReadFailed, StorageFull


class FileCheckpoint:
    """The checkpoint in the file `path`. Its methods block."""

    def __init__(self, path: str | Path, files: Files | None = None) -> None:
        self._path = Path(path)
        self._files = files or OsFiles()

    def load(self) -> int:
        """Returns the sequence up to which all events were handled; 0 if there is no file.

        Raises:
            Corrupt: the file is damaged.
            ReadFailed: the operating system refuses to read it.
        """
        try:
            sequence = read_document(self._files, self._path).get("sequence")
        except FileNotFoundError:
            return 0
        except Corrupt as error:
            raise self._corrupt(str(error.what).partition(";")[0]) from None
        except OSError as error:
            raise ReadFailed(
                f"{self._path}: the checkpoint of the reactions cannot be read ({error.strerror}); check that it is a "
                "file, its owner and mode",
                file=str(self._path),
            ) from error
        if type(sequence) is not int or sequence < 0:
            raise self._corrupt("it has no sequence")
        return sequence

    def save(self, sequence: int) -> None:
        """Writes the checkpoint durably.

        Raises:
            StorageFull, FolderRefused: it cannot be written; the old checkpoint remains.
        """
        try:
            write_document(self._files, self._path, {"sequence": sequence})
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

    def _corrupt(self, what: str) -> Corrupt:
        return Corrupt(
            str(self._path),
            0,
            f"{what}; replace it with its previous copy, {self._path.name}{PREVIOUS}, or remove it to begin with the first "
            "event: commands that are sent again take effect only once",
        )
