"""Senders are told what became of their commands. One receiver's fault does not keep the others from their answers."""

from __future__ import annotations

from collections.abc import Sequence

from eventstore_mailbox.entry import FAILED, AnyEntry
from eventstore_mailbox.plain import PLAIN, PlainEntry
from eventstore_mailbox.ports import AnyPorts


def answer(ports: AnyPorts, entries: Sequence[AnyEntry]) -> None:
    """Commands go to `Ports.answer` together, plain appends into the call they belong to."""
    commands = [entry for entry in entries if entry.command is not PLAIN]
    if len(commands) < len(entries):
        for entry in entries:
            if isinstance(entry, PlainEntry):
                _answer_plain(ports, entry)
    if commands:
        try:
            ports.answer(commands)
        except Exception as error:
            ports.on_error("answer", error)


def _answer_plain(ports: AnyPorts, entry: PlainEntry) -> None:
    try:
        outcome = entry.result
        if entry.status >= FAILED:
            assert isinstance(outcome, Exception)
            outcome = ports.refusal(outcome)
        entry.call.put(entry.place, outcome)
    except Exception as error:
        ports.on_error("answer", error)
