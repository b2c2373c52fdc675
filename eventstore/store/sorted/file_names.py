"""The names of files that belong to an event file: the index, and temporary ones. For programs that need no more of them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

INDEX: Final = "index"


def temporary(path: Path, token: str) -> Path:
    """Returns a temporary name. `token` is unique to the process: an earlier process that still runs writes to other names."""
    return path.with_name(f"{path.name}.{token}.tmp" if token else f"{path.name}.tmp")
