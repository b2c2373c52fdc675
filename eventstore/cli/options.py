"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_STORE = "tcp://127.0.0.1:7701"

StoreAddress = Annotated[
    str, typer.Option("--store", metavar="tcp://HOST:PORT", envvar="EVENTSTORE_STORE", help="Where the server is.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
After = Annotated[int, typer.Option("--after", metavar="SEQUENCE", min=0, help="Only what was appended behind this sequence.")]
Types = Annotated[
    list[str] | None, typer.Option("--type", metavar="TYPE", help="Only events of this type; may be given several times.")
]
Prefix = Annotated[str | None, typer.Option("--prefix", metavar="TEXT", help="Only aggregates whose id begins like this.")]
DataFolder = Annotated[Path, typer.Argument(metavar="DATA", help="The data folder of a store.")]
