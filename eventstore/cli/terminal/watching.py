"""Ctrl-C while a command waits for what others do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from eventstore.cli.terminal.output import print_note


@contextmanager
def only_watching(continues: str) -> Iterator[None]:
    """Says on standard error what continues if the command is interrupted in here."""
    try:
        yield
    except* KeyboardInterrupt:
        print_note(continues)
        raise
