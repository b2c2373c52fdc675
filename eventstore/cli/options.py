"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eventstore.errors import InvalidArgument

if TYPE_CHECKING:
    from datetime import datetime

DEFAULT_STORE = "tcp://127.0.0.1:7701"

StoreAddress = Annotated[
    str, typer.Option("--store", metavar="tcp://HOST:PORT", envvar="EVENTSTORE_STORE", help="Where the server is.")
]
Wait = Annotated[
    float,
    typer.Option(
        "--wait", metavar="SECONDS", min=0, help="Try so long to reach a server that is not there yet; inf: for ever."
    ),
]
WAIT_SECONDS = 30.0  # as a client waits for one that went away
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
After = Annotated[int, typer.Option("--after", metavar="SEQUENCE", min=0, help="Only what was appended behind this sequence.")]
Types = Annotated[
    list[str] | None, typer.Option("--type", metavar="TYPE", help="Only events of this type; may be given several times.")
]
Prefix = Annotated[str | None, typer.Option("--prefix", metavar="TEXT", help="Only aggregates whose id begins like this.")]
DataFolder = Annotated[Path, typer.Argument(metavar="DATA", help="The data folder of a store.")]


def parse_time(option: str, text: str) -> datetime:
    """A point in time out of ISO 8601 with a zone. Raises InvalidArgument."""
    from datetime import datetime

    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgument(
            f"{option} is {text!r}, expected ISO 8601 such as 2026-01-31T12:00:00Z", field=option, value=text
        ) from None
    if time.tzinfo is None:
        raise InvalidArgument(f"{option} {text!r} has no time zone, such as Z or +01:00", field=option, value=text)
    return time
