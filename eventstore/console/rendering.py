"""Turns templates into pages. Everything in them is escaped, also what could change the direction of text or hide in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from eventstore.fields import escaped, for_people

FOLDER: Final = Path(__file__).parent
PAYLOAD_SHOWN_MAX: Final = 64 * 1024
_FOLDED_FROM: Final = 300
_TOKEN: Final = re.compile(r'("(?:[^"\\]|\\.)*")(\s*:)?|(-?\d[\d.eE+-]*|true|false|null)|([^"\d\-tfn]+|.)', re.DOTALL)
_UNITS: Final = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_SPANS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"))


def printable(value: object) -> object:
    """Spells the characters of a text that are not printable, before Jinja escapes it for HTML."""
    return escaped(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def count(value: object) -> str:
    """Formats a figure for people."""
    if not isinstance(value, float):
        return for_people(value)
    if value != value:
        return "–"
    return f"{value:,.0f}" if value >= 100 or value.is_integer() else f"{value:,.1f}" if value >= 1 else f"{value:,.2g}"


def size(value: object) -> str:
    """Formats a number of bytes."""
    if not isinstance(value, int | float) or value != value:
        return "–"
    for factor, unit in _UNITS:
        if value >= factor:
            return f"{value / factor:,.1f} {unit}"
    return f"{value:,.0f} B"


def span(seconds: float | None) -> str:
    """Formats a time span."""
    if seconds is None:
        return "–"
    for factor, unit in _SPANS:
        if seconds >= factor:
            return f"{seconds / factor:,.1f} {unit}"
    return f"{seconds:,.1f} s"


def moment(microseconds: int) -> str:
    """Formats a timestamp, in UTC."""
    try:
        found = datetime.fromtimestamp(microseconds // 1_000_000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{microseconds} µs"
    return f"{found:%Y-%m-%d %H:%M:%S}.{microseconds % 1_000_000 // 1000:03d}"


def payload(data: bytes | None, is_json: bool = True) -> Markup:
    """Shows the data of an event or message: JSON folded and coloured, other text as it is, bytes as hexadecimal digits."""
    if not data:
        return Markup('<span class="none">empty</span>')
    cut = data[:PAYLOAD_SHOWN_MAX]
    more = Markup('<p class="note">the first {} of {} bytes</p>').format(len(cut), len(data)) if cut is not data else ""
    if is_json and len(cut) == len(data):
        try:
            text = json.dumps(json.loads(data), indent=2, ensure_ascii=False)
        except (ValueError, RecursionError):
            text = None
        if text is not None:
            return _folded(" ".join(data.decode(errors="replace").split()), Markup("").join(_coloured(text)))
    try:
        plain = cut.decode()
    except UnicodeDecodeError:
        plain = cut.hex(" ")
    return _folded(" ".join(plain.split()), Markup("\n").join(_lines(plain))) + more


def _lines(text: str) -> list[Markup]:
    return [escape(escaped(line)) for line in text.split("\n")]


def _folded(line: str, whole: Markup) -> Markup:
    if len(line) <= _FOLDED_FROM and whole.count("\n") <= 12:
        return Markup("<pre>{}</pre>").format(whole)
    return Markup("<details><summary><code>{}…</code></summary><pre>{}</pre></details>").format(escaped(line[:120]), whole)


def _coloured(text: str) -> Iterator[Markup]:
    for text_, colon, word, rest in _TOKEN.findall(text):
        if text_:
            yield Markup('<span class="{}">{}</span>{}').format("key" if colon else "text", escaped(text_), colon)
        elif word:
            yield Markup('<span class="word">{}</span>').format(word)
        else:
            yield escape(rest)


class Rendering:
    """The templates of the console."""

    def __init__(self) -> None:
        self._templates = Environment(
            loader=FileSystemLoader(FOLDER / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=printable,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._templates.filters |= {
            "count": count,
            "size": size,
            "span": span,
            "moment": moment,
            "payload": payload,
            "printable": printable,
        }

    def __call__(self, template: str, values: Mapping[str, Any]) -> str:
        """Returns a page, or a part of one."""
        return self._templates.get_template(template).render(values)
