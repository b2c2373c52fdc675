"""Prints the progress of a story, and checks it: a step is shown only after its result was found right."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from rich.console import Console
from rich.padding import Padding
from rich.table import Table

DEADLINE_SECONDS: Final = 60.0  # it only fails
_TICK_SECONDS: Final = 0.05


class DemoFailed(Exception):
    """A result was wrong."""


def expect(fine: bool, what: str) -> None:
    if not fine:
        raise DemoFailed(what)


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Returns when the condition holds; fails at the deadline."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        expect(time.monotonic() < deadline, f"{what}: not within {DEADLINE_SECONDS:.0f} s")
        time.sleep(_TICK_SECONDS)


class Stage:
    """Prints to the console."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def say(self, title: str, words: str = "") -> None:
        self._console.print(f"[bold green]✓[/] [bold]{title}[/]")
        for line in words.splitlines():
            self._console.print(f"  {line}", style="dim", markup=False, highlight=False, soft_wrap=True)

    def show(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Prints a table below the last words."""
        table = Table(*columns, box=None, padding=(0, 2, 0, 0), pad_edge=False)
        for row in rows:
            table.add_row(*map(str, row))
        self._console.print(Padding(table, (0, 0, 0, 2), expand=False))
