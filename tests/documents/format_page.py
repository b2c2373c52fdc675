"""Reads docs/FORMAT.md: its layouts, tables of steps, boxes and examples of bytes.

In the page, a table belongs to the line `<!-- NAME -->` before it; a box is a block ```` ```text box:MODULE````, an example of
bytes a block ```` ```hex NAME````, in which two spaces begin an explanation.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from pathlib import Path

TEXT = (Path(__file__).parents[2] / "docs" / "FORMAT.md").read_text(encoding="utf-8")
CODES = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "i64": "q", "u32 big endian": "I"}


@dataclass(frozen=True)
class Field:
    """A row of a layout."""

    offset: int
    size: int
    type: str
    name: str

    @property
    def code(self) -> str:
        return f"{self.size}s" if self.type == "bytes" else CODES[self.type]

    def of(self, raw: bytes) -> int | bytes:
        order = ">" if self.type.endswith("big endian") else "<"
        value: int | bytes = struct.unpack_from(order + self.code, raw, self.offset)[0]
        return value


def table(mark: str) -> list[list[str]]:
    """The cells of the table after `<!-- MARK -->`, without its two lines of heading."""
    parts = TEXT.split(f"<!-- {mark} -->\n\n")
    assert len(parts) == 2, f"{mark} is there {len(parts) - 1} times"
    rows = parts[1].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip().strip("`").replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]


def layout(name: str) -> list[Field]:
    return [Field(int(offset), int(size), type_, field) for offset, size, type_, field, _ in table(f"layout {name}")]


def read(name: str, raw: bytes) -> dict[str, int | bytes]:
    """Decodes bytes by the layout of the page, without reserved fields."""
    return {field.name: field.of(raw) for field in layout(name) if field.name != "reserved"}


def blocks(kind: str) -> dict[str, str]:
    return dict(re.findall(rf"^```{kind}[ :](\S+)\n(.*?)^```", TEXT, flags=re.M | re.S))


def example_bytes(name: str) -> bytes:
    return bytes.fromhex("".join(line.split("  ")[0] for line in blocks("hex")[name].splitlines()))


def steps(mark: str) -> list[str]:
    """The operations of a table of steps; replacing a document is spelled out."""
    operations = [row[1] for row in table(f"steps {mark}")]
    document = [row[1] for row in table("steps document")]
    return [each for operation in operations for each in (document if operation == "replace chunks.json" else [operation])]
