"""The settings that say who may connect, and how connections are encrypted."""

# No `from __future__ import annotations`: see `eventstore.settings.setting_declaration`.
from dataclasses import dataclass
from typing import Annotated, Literal

from eventstore.settings.setting_declaration import Setting, check_fields


@dataclass(frozen=True, slots=True)
class SecuritySettings:
    """How a server is protected. See [SECURITY](SECURITY.md).

    Raises:
        InvalidArgument: a value is not allowed.
    """

    tls_certificate: Annotated[
        str | None,
        Setting(
            "The server's certificate and those between it and its CA, as PEM: every listener then takes TLS only. Read again "
            "when it changes, and on SIGHUP; open connections stay.",
            "Security",
            metavar="FILE",
        ),
    ] = None
    tls_key: Annotated[
        str | None, Setting("The private key of the certificate, without a password.", "Security", metavar="FILE")
    ] = None
    tls_ca: Annotated[
        str | None,
        Setting(
            "Who signs the certificates of clients and of other nodes. Nodes with replicas need it.",
            "Security",
            metavar="FILE",
        ),
    ] = None
    tls_minimum: Annotated[Literal["1.3", "1.2"], Setting("The oldest version of TLS that is spoken.", "Security")] = "1.3"
    tls_clients: Annotated[
        Literal["optional", "required"],
        Setting("Whether clients must have a certificate of `tls_ca`; between nodes it is always required.", "Security"),
    ] = "optional"
    access_file: Annotated[
        str | None,
        Setting(
            "Who may do what; `eventstore access` edits it. If none is named, it is `access.json` in the data folder; without "
            "one everyone may do everything.",
            "Security",
            metavar="FILE",
        ),
    ] = None
    token_file: Annotated[
        str | None,
        Setting(
            "The token with which a server or worker connects to others, if they do not know its certificate.",
            "Security",
            metavar="FILE",
        ),
    ] = None
    insecure: Annotated[
        bool,
        Setting(
            "Listen on an address other than the loopback interface without TLS or without identities: everyone who reaches it "
            "may read and change everything.",
            "Security",
        ),
    ] = False

    def __post_init__(self) -> None:
        check_fields(self)
