"""`eventstore stats`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Final

import typer

from eventstore.cli.options import DEFAULT_STORE, AsJson, StoreAddress
from eventstore.cli.output import print_json, print_table

if TYPE_CHECKING:
    from eventstore.flat import Scalar

_RETRY_SECONDS: Final = 0.1


def stats(
    wait: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0, help="Wait so long for a server that is not there yet.", show_default=False),
    ] = 0.0,
    as_json: AsJson = False,
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """Print the figures of a running server.

    A script that starts one goes on when `eventstore stats --wait 10` has ended with exit code 0.

    \b
    Example:
      eventstore stats --json
    """
    from eventstore.errors import ConnectionLost

    until = time.monotonic() + wait
    while True:
        try:
            figures = _figures(store)
            break
        except ConnectionLost:
            if time.monotonic() >= until:
                raise
            time.sleep(_RETRY_SECONDS)
    if as_json:
        print_json(figures)
    else:
        print_table(None, ("figure", "value"), figures.items())


def _figures(store: str) -> dict[str, Scalar]:
    from eventstore import blocking

    with blocking.connect(store, name="eventstore stats") as connected:
        return connected.stats()
