"""Keeps the checkpoint of an outbox in a file."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from eventstore.chunks.documents import read_tree, write_document
from eventstore.chunks.files import Files, OsFiles
from eventstore.errors import Corrupt
from eventstore.server.outbox.outbox_resume import OutboxCheckpoint, checkpoint_of

_log = logging.getLogger(__name__)


INHERITED: Final = "inherited.json"
"""How far the outboxes of the parent of a shard were when it was split off."""


class CheckpointFile:
    """A checkpoint in a small JSON document, replaced atomically; the previous copy is kept. The methods block."""

    def __init__(self, path: Path, files: Files | None = None) -> None:
        self._path = path
        self._files = files or OsFiles()

    def load(self) -> OutboxCheckpoint | None:
        """Returns the checkpoint, if there is one. An unreadable one is ignored: the topic has nearly the same information."""
        try:
            return checkpoint_of(read_tree(self._files, self._path))
        except FileNotFoundError:
            return None
        except (Corrupt, KeyError, TypeError, ValueError, AttributeError) as error:
            _log.warning("%s is not a checkpoint (%s); publishing resumes where the topic ends", self._path, error)
            return None

    def save(self, checkpoint: OutboxCheckpoint) -> None:
        """Durable on return."""
        write_document(self._files, self._path, checkpoint.tree())


def inherited_places(folder: Path) -> dict[str, int]:
    """Returns the sequence up to which the parent of a shard that was split off had published all events, by topic."""
    try:
        found = read_tree(OsFiles(), folder / INHERITED).get("published")
    except FileNotFoundError:
        return {}
    return {topic: place for topic, place in found.items() if isinstance(place, int)} if isinstance(found, dict) else {}
