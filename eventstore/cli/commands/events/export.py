"""Writes stored events as lines of JSON."""

from __future__ import annotations

import errno
import gzip
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, cast

import typer

from eventstore.chunks.files import open_private
from eventstore.cli.terminal.output import meter, print_note, print_position
from eventstore.cli.terminal.shared_options import (
    DEFAULT_STORE,
    After,
    Aggregate,
    AtPosition,
    EventForm,
    FromTime,
    Prefix,
    StoreAddress,
    Tags,
    ToTime,
    Types,
    event_filters,
    last_sequence,
    parse_place,
)
from eventstore.fields import counted

if TYPE_CHECKING:
    from eventstore.cli.transfer.event_lines import Write
    from eventstore.client.blocking.routing import BlockingMergedEvents
    from eventstore.model import Event

_LINES = 500


def export(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to this file; packed if it ends in .gz.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    after: After = "0",
    types: Types = None,
    tags: Tags = None,
    prefix: Prefix = None,
    aggregate: Aggregate = None,
    from_time: FromTime = None,
    to_time: ToTime = None,
    position: AtPosition = False,
    form: EventForm = "lines",
    progress: Annotated[
        bool | None, typer.Option("--progress/--no-progress", help="Show a progress bar. [on a terminal, with -o]")
    ] = None,
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """Write stored events as lines of JSON.

    The events are written in the order of their appends, up to the last event at the start. The server's own
    aggregates, whose ids begin with $, are left out unless --aggregate or --prefix names them.

    With --position the last line on standard error is a position. The next export continues there with --after.

    Importing the result gives equal events; another store assigns other sequence numbers. The lines of a commit of
    several aggregates say so, and are imported by one commit. Of one that a filter passes in part, the rest is none of
    it any more. The file gets its name when it is complete.

    \b
    Example:
      eventstore export --prefix order- -o orders.jsonl.gz
      eventstore export --format cloudevents -o orders.cloudevents.jsonl
    """
    from eventstore import blocking
    from eventstore.cli.transfer.event_lines import writer
    from eventstore.client.blocking.routing import BlockingMergedEvents
    from eventstore.fields import RESERVED

    filters = event_filters(types, prefix, aggregate, from_time, to_time, tags)
    if output == Path("-"):
        output = None
    with (
        _written(output, force) as file,
        blocking.connect(store, name="eventstore export", timeout=None) as connected,
        meter("export", False if output is None and progress is None else progress) as bar,
    ):
        begin = parse_place("--after", after)
        first = begin if isinstance(begin, int) else sum(sequence for sequence, _ in begin.shards.values())
        last = last_sequence(connected, begin if isinstance(begin, int) else 0)
        count = 0
        log = connected.read_all(begin, **filters)
        found: Iterator[Event] = iter(log)
        if not (aggregate or prefix or "").startswith(RESERVED):
            found = (event for event in found if not event.aggregate_id.startswith(RESERVED))
        shards = log if isinstance(log, BlockingMergedEvents) else None
        for lines, sequence in _lines(found, shards, writer(form, connected.origin)):
            file.write(lines)
            count += lines.count(b"\n")
            bar.update(sequence - first, max(last, sequence) - first, f"{count:,} events")
        reached = log.position if position else None
    if output is not None:
        print_note(f"{counted(count, 'event')} written to {output}")
    if reached is not None:
        print_position(reached, as_json=False)


def _lines(events: Iterator[Event], shards: BlockingMergedEvents | None, write: Write) -> Iterator[tuple[bytes, int]]:
    """Yields a few hundred lines at a time, with their last sequence. `shards`: the events of several."""
    from eventstore.cli.transfer.joint_events import marked_events

    lines: list[str] = []
    sequence = 0
    for event, shard, joint in marked_events(events, lambda: None if shards is None else shards.shard):
        lines.append(write(event, shard, joint))
        sequence = event.sequence
        if len(lines) >= _LINES:
            yield ("\n".join(lines) + "\n").encode(), sequence
            lines.clear()
    if lines:
        yield ("\n".join(lines) + "\n").encode(), sequence


@contextmanager
def _written(path: Path | None, force: bool) -> Iterator[BinaryIO]:
    """Opens standard output, or a file beside `path` that is renamed to it when it is complete."""
    if path is None:
        yield sys.stdout.buffer
        return
    if path.exists() and not (force and path.is_file()):
        hint = "--force overwrites it" if path.is_file() else "name a file"
        raise FileExistsError(errno.EEXIST, f"exists; {hint}", str(path))
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "does not exist; create it first", str(path.parent))
    temporary = path.with_name(path.name + ".part")
    temporary.unlink(missing_ok=True)  # left by one that was killed; it may be open to others
    try:
        with open(temporary, "wb", opener=open_private) as raw:
            if path.suffix == ".gz":
                with gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=6, filename="") as packed:
                    yield cast(BinaryIO, packed)
            else:
                yield raw
            raw.flush()
            os.fsync(raw.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
