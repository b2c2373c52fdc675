"""Rows for Spark: numpy columns of selected events, and the bytes that hold their payloads.

Every reader returns rows in this form, and `arrow_batches` turns them into Arrow. Within one `FileRows`, records and payloads
are in the order of the rows, all inside `data`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Column = npt.NDArray[np.generic]

# the columns of the event files that each column of the table is built from
SOURCES: Final[dict[str, tuple[str, ...]]] = {
    "aggregate_id": ("ordinal",),
    "version": ("version",),
    "sequence": ("sequence",),
    "timestamp": ("time",),
    "type": ("type",),
    "data": ("data", "data_len"),
    "data_json": ("data", "data_len", "format"),
    "metadata": ("meta", "meta_len", "format"),
    "tags": ("meta", "meta_len", "format"),
    "command_id": ("record",),
    "_offset": ("record",),
    "_format": ("format",),
    "_metadata": ("meta", "meta_len"),
}
PAYLOADS: Final = frozenset({"data", "data_json", "metadata", "tags", "command_id", "_metadata"})
"""The columns that only the event file holds; its index holds all others as well."""


@dataclass(frozen=True, slots=True)
class FileRows:
    """Rows of one event file.

    Attributes:
        columns: as in the event index.
        ids: looked up by ordinal.
        types: looked up by ordinal.
        data: begins at byte `base` of the event file.
    """

    count: int
    columns: Mapping[str, Column]
    ids: pa.Array
    types: pa.Array
    data: memoryview
    base: int
