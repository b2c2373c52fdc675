"""Draws the last hour of a series as SVG, on the server, so that a page needs no script for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from markupsafe import Markup

WIDTH, HEIGHT = 240, 56
_SPAN_S: Final = 3600.0
_COLUMNS: Final = 120
_SVG: Final = Markup(
    '<svg class="chart" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">'
    '<path class="area" d="{}"/><path class="line" d="{}"/></svg>'
)


def chart(times: Sequence[float], values: Sequence[float], label: str) -> Markup:
    """Returns the chart of a series, whose last time is its right end. The largest of the points of half a minute is drawn.

    Args:
        values: NaN where nothing is known: the line has a gap there.
        label: what it shows, for people who do not see it.
    """
    columns = _columns(times, values)
    top = max((value for value in columns if value is not None), default=0.0) or 1.0
    line, area, run = [], [], list[tuple[float, float]]()
    for place, value in enumerate([*columns, None]):
        if value is not None:
            run.append((WIDTH * place / (_COLUMNS - 1), HEIGHT - 1 - (HEIGHT - 4) * value / top))
        elif run:
            points = " ".join(f"{x:.1f},{y:.1f}" for x, y in run)
            line.append(f"M{points}" if len(run) > 1 else f"M{points}h1")
            area.append(f"M{run[0][0]:.1f},{HEIGHT} L{points} V{HEIGHT}Z")
            run = []
    return _SVG.format(WIDTH, HEIGHT, label, "".join(area), "".join(line))


def _columns(times: Sequence[float], values: Sequence[float]) -> list[float | None]:
    found: list[float | None] = [None] * _COLUMNS
    for at, value in zip(times, values, strict=True):
        place = _COLUMNS - 1 - int((times[-1] - at) / _SPAN_S * _COLUMNS)
        if place >= 0 and not math.isnan(value):
            found[place] = max(value, found[place] or 0.0)
    return found
