"""Ends a command that works on a data folder without a server, if the folder cannot be opened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import typer

from eventstore.cli.terminal.output import print_error

_CANNOT_BE_OPENED: Final = 2


@contextmanager
def opening(folder: Path) -> Iterator[None]:
    """Prints an error of the store or of the system in one line, and ends the command with exit code 2. `folder`: named if the
    system names no file.
    """
    from eventstore.errors import EventStoreError

    try:
        yield
    except EventStoreError as error:
        print_error(error.message)
        raise typer.Exit(_CANNOT_BE_OPENED) from None
    except OSError as error:
        print_error(f"{error.filename or folder}: {error.strerror}")
        raise typer.Exit(_CANNOT_BE_OPENED) from None
