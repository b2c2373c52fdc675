"""Makes certificates for trying out TLS."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from eventstore.cli.terminal.output import print_line


def certificate(
    names: Annotated[
        list[str],
        typer.Argument(metavar="NAME…", help="Host names and IP addresses of a server or node, or the name of a client."),
    ],
    folder: Annotated[Path, typer.Option("--to", metavar="FOLDER", help="The folder of the CA and of the new files.")] = Path(
        "certificates"
    ),
    days: Annotated[int, typer.Option(metavar="N", min=1, max=3650, help="How long the certificate is valid.")] = 90,
) -> None:
    """Make a certificate for trying out TLS.

    It writes FOLDER/NAME.pem and FOLDER/NAME.key, and, if the folder has no CA, FOLDER/ca.pem and FOLDER/ca.key. For anything
    that lasts, use the CA of your organisation.

    \b
    Example:
      eventstore certificate localhost 127.0.0.1
      eventstore serve --tls-certificate certificates/localhost.pem --tls-key certificates/localhost.key
    """
    from eventstore.security.certificates import make_certificate

    for path in make_certificate(folder, names, days):
        print_line(f"{path} written")
