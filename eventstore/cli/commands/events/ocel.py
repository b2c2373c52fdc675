"""Writes events as an object-centric event log."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eventstore.chunks.files import open_private
from eventstore.cli.terminal.output import meter, print_note
from eventstore.cli.terminal.shared_options import (
    DEFAULT_STORE,
    FromTime,
    Prefix,
    ShowProgress,
    StoreAddress,
    Tags,
    ToTime,
    Types,
    event_filters,
    last_sequence,
)
from eventstore.errors import InvalidArgument
from eventstore.fields import RESERVED, counted

if TYPE_CHECKING:
    from eventstore.cli.transfer.object_log import ObjectLog

_SQLITE = (".sqlite", ".db")


def ocel(
    output: Annotated[Path, typer.Argument(metavar="FILE", help="FILE.json, or FILE.sqlite.")],
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    types: Types = None,
    tags: Tags = None,
    prefix: Prefix = None,
    from_time: FromTime = None,
    to_time: ToTime = None,
    progress: ShowProgress = None,
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """Write events as an object-centric event log, OCEL 2.0.

    The objects of an event are its aggregate and its tags. Tools of process mining discover from the file how
    processes run. The file gets its name when it is complete.

    \b
    Example:
      eventstore ocel orders.json --prefix order-
    """
    from eventstore import blocking

    filters = event_filters(types, prefix, None, from_time, to_time, tags)
    with (
        blocking.connect(store, name="eventstore ocel", timeout=None) as connected,
        _written(output, force) as log,
        meter("ocel", progress) as bar,
    ):
        last = last_sequence(connected, 0)
        for event in connected.read_all(**filters):
            if not event.aggregate_id.startswith(RESERVED):
                log.add(event)
                if not log.events % 1_000:
                    bar.update(event.sequence, last, f"{log.events:,} events")
    print_note(f"{counted(log.events, 'event')} of {counted(log.objects, 'object')} written to {output}")


@contextmanager
def _written(path: Path, force: bool) -> Iterator[ObjectLog]:
    """Opens a file beside `path` that is renamed to it when it is complete."""
    from eventstore.cli.transfer.object_log import JsonObjectLog, SqliteObjectLog

    if path.suffix not in (".json", *_SQLITE):
        raise InvalidArgument(f"{path} has neither the suffix .json nor .sqlite, which says what it is", field="output")
    if path.exists() and not (force and path.is_file()):
        raise FileExistsError(errno.EEXIST, "exists; --force overwrites it", str(path))
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "does not exist; create it first", str(path.parent))
    temporary = path.with_name(path.name + ".part")
    temporary.unlink(missing_ok=True)  # left by one that was killed
    try:
        if path.suffix in _SQLITE:
            with SqliteObjectLog(temporary) as log:
                yield log
        else:
            with io.TextIOWrapper(open(temporary, "xb", opener=open_private), encoding="utf-8") as file:
                with JsonObjectLog(file) as log:
                    yield log
        descriptor = os.open(temporary, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
