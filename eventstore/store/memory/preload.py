"""The preload file: ids of the aggregates that changed last, which warm the version cache of a restarted store."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path

from eventstore.chunks.files import Files
from eventstore.records.commit import is_id

NAME = "recent.json"
_BYTES_MAX = 512 * 1024 * 1024


class PreloadFile:
    """Derived data: a preload file that cannot be read counts as empty."""

    def __init__(self, files: Files, folder: Path) -> None:
        self._files = files
        self._path = folder / NAME

    def write(self, aggregate_ids: Sequence[str]) -> None:
        """Replaces the file. It is not synced: a lost file only means a cold cache."""
        temporary = self._path.with_name(NAME + ".tmp")
        with contextlib.suppress(OSError):
            if self._files.exists(temporary):
                self._files.remove(temporary)
            file = self._files.open(temporary, create=True)
            try:
                file.write_at(0, [json.dumps(list(aggregate_ids)).encode()])
            finally:
                file.close()
            self._files.rename(temporary, self._path)

    def read(self) -> list[str]:
        """Returns the ids, in the order in which the aggregates changed last."""
        try:
            file = self._files.open(self._path)
        except OSError:
            return []
        try:
            size = file.size()
            names = json.loads(file.read_at(0, size)) if size <= _BYTES_MAX else []
        except (OSError, ValueError, RecursionError):
            return []
        finally:
            file.close()
        return [name for name in names if is_id(name)] if isinstance(names, list) else []
