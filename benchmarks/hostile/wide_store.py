"""A data folder with one aggregate in very many small sorted files."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import eventstore as es
from eventstore.settings.store import StoreSettings
from eventstore.store.open_store import open_store
from eventstore.store.rebuild import rebuild

WIDE: Final = "wide"
FILES: Final = 250


async def fill(data: Path) -> None:
    """Fills the folder, which is new."""
    settings = StoreSettings(file_size_bytes=8192, preallocate_bytes=4096, sort=False)
    async with open_store(data, settings) as store:
        for number in range(FILES):
            await store.append(WIDE, [es.NewEvent("Happened", b"{}")], number)
            await store.append("filler", [es.NewEvent("Happened", bytes(3_700))], number)
    rebuild(data)
