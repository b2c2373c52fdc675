"""How far reactions have come: a sequence in a small JSON document, replaced atomically, with the copy before beside it."""

from __future__ import annotations

from pathlib import Path

from eventstore.chunks.documents import read_document, write_document
from eventstore.chunks.files import Files, OsFiles
from eventstore.errors import Corrupt


class FileCheckpoint:
    """The checkpoint in the file `path`. Its methods block."""

    def __init__(self, path: str | Path, files: Files | None = None) -> None:
        self._path = Path(path)
        self._files = files or OsFiles()

    def load(self) -> int:
        """The sequence up to which everything was reacted to; 0 where there is no file.

        Raises:
            Corrupt: the file is not what was written.
        """
        try:
            sequence = read_document(self._files, self._path).get("sequence")
        except FileNotFoundError:
            return 0
        if type(sequence) is not int or sequence < 0:
            raise Corrupt(str(self._path), 0, f"no sequence in it; the copy before is {self._path.name}.previous")
        return sequence

    def save(self, sequence: int) -> None:
        """Durable on return."""
        write_document(self._files, self._path, {"sequence": sequence})
