"""A picture of a process class: its states, and what leads from one to the next, as a Mermaid state diagram."""

from __future__ import annotations

from eventstore.domain.processes.process import On, Process
from eventstore.domain.processes.registration import process_type

_WORDS = {"event": "", "deadline": "after ", "refused": "refused: "}


def mermaid(cls: type[Process]) -> str:
    """Returns the diagram of a registered class. What is taken in any state leads from each of them. Raises DomainRefused."""
    takes = [each for each, _ in process_type(cls).methods.values()]
    states = list(dict.fromkeys(state for each in takes for state in (*each.at, each.to) if state))
    lines = ["stateDiagram-v2", *(f"    s{number} : {state}" for number, state in enumerate(states))]
    for each in takes:
        for source in _sources(each, states):
            begin = "[*]" if source is None else f"s{states.index(source)}"
            end = begin if each.to is None else f"s{states.index(each.to)}"
            if end != "[*]":
                lines.append(f"    {begin} --> {end} : {_WORDS[each.kind]}{each.name}")
    return "\n".join(lines) + "\n"


def _sources(takes: On, states: list[str]) -> list[str | None]:
    if takes.starts:
        return [None]
    return list(takes.at or (state for state in states if state != takes.to))
