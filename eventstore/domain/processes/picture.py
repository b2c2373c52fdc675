"""Pictures of a process class: its states, and what leads from one to the next, as a Mermaid diagram or as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import pairwise
from typing import Final

from eventstore.domain.processes.process import On, Process
from eventstore.domain.processes.registration import process_type

_WORDS: Final = {"event": "", "deadline": "after ", "refused": "refused: "}
_ROW, _LEFT, _BOX, _WIDTH = 56, 240, 200, 760
_ARC, _ARC_STEP, _ARC_MAX = 24, 44, 200


def ways_of(cls: type[Process]) -> tuple[list[str], dict[tuple[int | None, int], list[str]]]:
    """Returns the states of a registered class, and what leads from one to another: by their places among the states, None for
    the beginning. What is taken in any state leads from each of them. Raises DomainRefused.
    """
    takes = [each for each, _ in process_type(cls).methods.values()]
    states = list(dict.fromkeys(state for each in takes for state in (*each.at, each.to) if state))
    found: dict[tuple[int | None, int], list[str]] = {}
    for each in takes:
        for source in _sources(each, states):
            target = source if each.to is None else states.index(each.to)
            if target is not None:
                found.setdefault((source, target), []).append(_WORDS[each.kind] + each.name)
    return states, found


def _sources(takes: On, states: list[str]) -> list[int | None]:
    if takes.starts:
        return [None]
    return [states.index(state) for state in takes.at or (state for state in states if state != takes.to)]


def mermaid(cls: type[Process]) -> str:
    """Returns a state diagram of a registered class for Mermaid. Raises DomainRefused."""
    states, ways = ways_of(cls)
    lines = ["stateDiagram-v2", *(f"    s{number} : {state}" for number, state in enumerate(states))]
    for (source, target), names in ways.items():
        lines.append(f"    {'[*]' if source is None else f's{source}'} --> s{target} : {', '.join(names)}")
    return "\n".join(lines) + "\n"


def svg(cls: type[Process], way: Sequence[str] = ()) -> str:
    """Returns a picture of a registered class. `way`: the states that a process was in, which are drawn stronger, the last one
    as the state that it is in. Raises DomainRefused.
    """
    states, ways = ways_of(cls)
    places: list[int | None] = [None, *(states.index(state) for state in way if state in states)]
    passed = set(pairwise(places))
    height = _ROW * (len(states) + 1)
    label = f"the states of {cls.__name__}" + (f"; it is {way[-1]}" if way else "")
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" role="img" aria-label="{escape(label)}" '
        'font-size="13" fill="none" stroke="currentColor">'
    ]
    parts += [_arc(source, target, names, (source, target) in passed) for (source, target), names in ways.items()]
    parts.append(f'<circle cx="{_LEFT + _BOX / 2:g}" cy="12" r="6" fill="currentColor"/>')
    for number, state in enumerate(states):
        strong, here = state in way, bool(way) and state == way[-1]
        parts.append(
            f'<rect x="{_LEFT}" y="{_top(number):g}" width="{_BOX}" height="28" rx="6" stroke-width="{2.5 if strong else 1}"'
            f"{'' if strong or not way else ' stroke-dasharray=' + chr(34) + '4 3' + chr(34)}/>"
            f'<text x="{_LEFT + _BOX / 2:g}" y="{_top(number) + 19:g}" text-anchor="middle" fill="currentColor" stroke="none"'
            f"{' font-weight=' + chr(34) + 'bold' + chr(34) if here else ''}>{escape(state)}</text>"
        )
    return "".join(parts) + "</svg>"


def way_of(steps: Sequence[str]) -> list[str]:
    """Returns the states that a process was in, from its state after each step."""
    return [state for place, state in enumerate(steps) if state and (place == 0 or steps[place - 1] != state)]


def _top(number: int) -> float:
    return _ROW * (number + 1) - 20


def _arc(source: int | None, target: int, names: Sequence[str], passed: bool) -> str:
    """Draws a way as an arc: down on the right, up on the left."""
    width = 2.5 if passed else 1
    begin = 18 if source is None else _top(source) + 14
    end = _top(target) + (0 if source is None else 14)
    text = escape(", ".join(names))
    if source is None:
        x = _LEFT + _BOX / 2
        line = f"M{x:g},{begin:g} L{x:g},{end:g}"
        return _way(line, (x, end), 90, width) + _text(x + 10, (begin + end) / 2 + 4, text, "start")
    down = target > source
    reach = min(_ARC + _ARC_STEP * (abs(target - source) - 1), _ARC_MAX) * (1 if down else -1)
    x = _LEFT + _BOX if down else _LEFT
    y = begin if source != target else begin - 10
    line = f"M{x:g},{y:g} C{x + reach * 1.4:g},{y:g} {x + reach * 1.4:g},{end:g} {x:g},{end:g}"
    place = (x + reach * 1.1 + (4 if down else -4), (y + end) / 2 + 4)
    return _way(line, (x, end), 180 if down else 0, width) + _text(*place, text, "start" if down else "end")


def _way(line: str, tip: tuple[float, float], turned: int, width: float) -> str:
    arrow = f"translate({tip[0]:g} {tip[1]:g}) rotate({turned})"
    head = f'<path d="M0,0 L-8,-4 L-8,4 Z" transform="{arrow}" fill="currentColor" stroke="none"/>'
    return f'<path d="{line}" stroke-width="{width}"/>{head}'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="currentColor" stroke="none">{text}</text>'
