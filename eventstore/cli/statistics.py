"""`eventstore stats`."""

from __future__ import annotations

from eventstore.cli.options import DEFAULT_STORE, AsJson, StoreAddress
from eventstore.cli.output import print_json, print_table


def stats(store: StoreAddress = DEFAULT_STORE, as_json: AsJson = False) -> None:
    """Print the figures of a running server.

    \b
    Example:
      eventstore stats --json
    """
    from eventstore import blocking

    with blocking.connect(store, name="eventstore stats") as connected:
        figures = connected.stats()
    if as_json:
        print_json(figures)
    else:
        print_table(None, ("figure", "value"), figures.items())
