"""The settings of alarms: when a person is notified, and how."""

# No `from __future__ import annotations`: see `eventstore.settings.setting_declaration`.
from dataclasses import dataclass, field
from typing import Annotated, Literal

from eventstore.settings.setting_declaration import DAY_S, Setting, check_fields


@dataclass(frozen=True, slots=True)
class AlarmSettings:
    """Which alarms there are, and where they are sent. See [OPERATIONS](OPERATIONS.md#alarms).

    Raises:
        InvalidArgument: a value is not allowed.
    """

    rules: Annotated[
        str | None,
        Setting(
            "Rules beside the built-in ones, one a line or with `;` between them: `NAME: FIGURE > NUMBER for SECONDS`. One "
            "with the name of another replaces it, `NAME: off` removes it.",
            "Alarms",
            metavar="RULES",
        ),
    ] = None
    interval_s: Annotated[float, Setting("How often the rules are evaluated.", "Alarms", 0.05, 3600.0)] = 1.0
    quiet_s: Annotated[float, Setting("An alarm ends once its rule has not held for this long.", "Alarms", 0.0, DAY_S)] = 60.0
    webhook: Annotated[
        str | None,
        Setting("Where changes of alarms are posted, as JSON.", "Alarms", unit="address", metavar="URL", secret=True),
    ] = field(default=None, repr=False)
    webhook_file: Annotated[
        str | None,
        Setting(
            "A file with that address, whose path often is a secret: other accounts see a command line, and not a file.",
            "Alarms",
            metavar="FILE",
        ),
    ] = None
    webhook_secret_file: Annotated[
        str | None, Setting("The key that signs what is posted, with HMAC-SHA256.", "Alarms", metavar="FILE")
    ] = None
    mail_server: Annotated[
        str | None, Setting("The mail server that changes are sent through.", "Alarms", unit="address", metavar="HOST:PORT")
    ] = None
    mail_from: Annotated[str | None, Setting("The sender of these mails.", "Alarms", metavar="ADDRESS")] = None
    mail_to: Annotated[str | None, Setting("Who gets them, with commas between.", "Alarms", metavar="ADDRESS,…")] = None
    mail_security: Annotated[
        Literal["starttls", "tls", "none"],
        Setting("How the connection to the mail server is encrypted; `none` sends no password but to this machine.", "Alarms"),
    ] = "starttls"
    mail_user: Annotated[str | None, Setting("The user at the mail server.", "Alarms", metavar="NAME")] = None
    mail_password_file: Annotated[str | None, Setting("The password of that user.", "Alarms", metavar="FILE")] = None
    ca_file: Annotated[
        str | None,
        Setting(
            "Who signs the certificates of mail server and webhook, if the system does not know.", "Alarms", metavar="FILE"
        ),
    ] = None

    def __post_init__(self) -> None:
        check_fields(self)
