"""Adds new events to the tables of a lake."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from eventstore.cli.terminal.output import meter, print_line
from eventstore.cli.terminal.shared_options import DEFAULT_STORE, ShowProgress, StoreAddress
from eventstore.fields import counted


def lake(
    to: Annotated[str, typer.Argument(metavar="KIND:FOLDER", help="delta:FOLDER or iceberg:FOLDER.")],
    domain: Annotated[str, typer.Option(metavar="MODULE:NAME", help="The domain, such as bank:app.")],
    chunk_events: Annotated[
        int, typer.Option("--chunk-events", metavar="N", min=1, help="How many events become one commit of their tables.")
    ] = 250_000,
    progress: ShowProgress = None,
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """Add new events to Delta or Iceberg tables.

    Each class of events has a table, whose columns are those of its fields, with their types. Each run adds what has come
    up since the last one, each event exactly once, also after one that was killed. Events without a class in the domain
    are left out; once it has one, all of them are added. Needs the extra delta or iceberg.

    \b
    Example:
      eventstore lake delta:/srv/lake --domain bank:app
    """
    from eventstore import blocking
    from eventstore.domain.import_path import load
    from eventstore.lake.export import export_events
    from eventstore.lake.progress import LakeProgress
    from eventstore.lake.tables import tables_at

    loaded, (kind, folder) = load(domain), tables_at(to)
    state = LakeProgress(folder, kind.kind)
    try:
        with (
            closing(kind(folder, state.lake)) as tables,
            blocking.connect(store, name="eventstore lake", timeout=None) as connected,
            meter("lake", progress) as bar,
        ):
            done = export_events(
                connected,
                loaded,
                state,
                tables,
                chunk_events=chunk_events,
                on_chunk=lambda events: bar.update(events, None, f"{counted(events, 'event')}"),
            )
    finally:
        state.close()
    print_line(f"{counted(done.events, 'event')} added to {counted(done.tables, 'table')}")
