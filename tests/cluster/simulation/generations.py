"""The generations of consumer groups, by the document that counts the starts of a broker (R15)."""

from __future__ import annotations

from pathlib import Path

from eventstore.broker.groups.offsets_document import OffsetsDocument
from tests.simulated_disk import SimulatedDisk

OFFSETS = "offsets"
_FOLDER = Path("/broker")
_PATH = _FOLDER / "offsets.json"


def started(raw: bytes | None) -> tuple[bytes, int]:
    """Returns the document after another start, and the number of starts. `raw`: the document as it was, if there is one."""
    files = SimulatedDisk(0)
    files.make_folder(_FOLDER)
    document = OffsetsDocument(files, _PATH)
    if raw is not None:
        files.replace(_PATH, raw)
        document.load()
    document.begin()
    return files.content(_PATH), document.starts
