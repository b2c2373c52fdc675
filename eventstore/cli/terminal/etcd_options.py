"""Options of the commands that ask etcd: where it is, and the name of the cluster in it."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

SECTION: Final = "Etcd"
DEFAULT_CLUSTER: Final = "eventstore"

EtcdEndpoints = Annotated[
    str | None,
    typer.Option("--etcd", metavar="URL,…", help="Where etcd is: one or several URLs, with commas.", rich_help_panel=SECTION),
]
ClusterName = Annotated[
    str, typer.Option("--cluster", metavar="NAME", help="The name of the cluster in etcd.", rich_help_panel=SECTION)
]
EtcdUser = Annotated[
    str | None,
    typer.Option(
        "--etcd-user",
        metavar="NAME",
        help="A user of etcd; its password is in EVENTSTORE_ETCD_PASSWORD.",
        rich_help_panel=SECTION,
    ),
]
EtcdCa = Annotated[
    str | None,
    typer.Option("--etcd-ca", metavar="FILE", help="Who signed the certificate of etcd.", rich_help_panel=SECTION),
]
EtcdCert = Annotated[
    str | None, typer.Option("--etcd-cert", metavar="FILE", help="A certificate for etcd.", rich_help_panel=SECTION)
]
EtcdKey = Annotated[str | None, typer.Option("--etcd-key", metavar="FILE", help="The key of it.", rich_help_panel=SECTION)]


def etcd_of(endpoints: str, user: str | None, ca: str | None, cert: str | None, key: str | None) -> dict[str, Any]:
    """Returns the options as JSON can hold them; without the password, which other users would see."""
    urls = [each.strip().rstrip("/") for each in endpoints.split(",") if each.strip()]
    return {"endpoints": urls, "user": user, "ca": ca, "cert": cert, "key": key}
