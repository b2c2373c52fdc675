"""Sends a notice by mail."""

from __future__ import annotations

import re
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from eventstore.alarms.notice import Notice
from eventstore.alarms.receiver import connected
from eventstore.alarms.webhook import secret_in
from eventstore.errors import InvalidArgument
from eventstore.fields import read_number, shown
from eventstore.security.loopback import is_loopback
from eventstore.settings.alarms import AlarmSettings

if TYPE_CHECKING:
    import smtplib
    from collections.abc import Iterator
    from socket import socket

_ADDRESS: Final = re.compile(r"[^\s@<>,;]+@[^\s@<>,;]+")
_PORTS: Final = {"starttls": 587, "tls": 465, "none": 25}


class Mail:
    """The mail server that notices are sent through. `send` blocks, for a thread."""

    name = "mail"

    def __init__(self, settings: AlarmSettings) -> None:
        """Raises InvalidArgument: a setting is missing or wrong, or a password would be sent in the clear."""
        self._host, self._port = _server(settings.mail_server or "", _PORTS[settings.mail_security])
        self._from = _addresses("alarm_mail_from", settings.mail_from, 1)[0]
        self._to = _addresses("alarm_mail_to", settings.mail_to)
        self._begun: Notice | None = None
        self._left = self._to  # recipients of that notice for whom it was not taken
        self._security, self._ca, self._user = settings.mail_security, settings.ca_file, settings.mail_user
        password = secret_in("alarm_mail_password_file", settings.mail_password_file)
        self._password = None if password is None else password.decode(errors="replace")
        if (self._user is None) != (self._password is None):
            raise InvalidArgument("alarm_mail_user and alarm_mail_password_file go together", field="alarm_mail_user")
        if self._user is not None and self._security == "none" and not is_loopback(self._host):
            raise InvalidArgument(
                "alarm_mail_security is none, so the password would be sent in the clear", field="alarm_mail_security"
            )

    def send(self, notice: Notice) -> None:
        """Sends a notice to all recipients. If the same notice is sent again, sends it to the recipients for whom it was not
        taken.

        Raises:
            OSError: the server did not take it for all.
        """
        from email.message import EmailMessage
        from email.utils import formatdate, make_msgid

        message = EmailMessage()
        message["From"], message["To"] = self._from, ", ".join(self._to)
        message["Subject"] = notice.subject()
        message["Date"], message["Message-ID"] = formatdate(notice.time_us / 1e6), make_msgid(domain="eventstore")
        message["Auto-Submitted"] = "auto-generated"
        message.set_content(notice.text())
        if notice is not self._begun:
            self._begun, self._left = notice, self._to
        with self._connected() as server:
            refused = server.send_message(message, to_addrs=self._left)
        self._left = [each for each in self._left if each in refused]
        if refused:
            raise OSError(f"it refused {', '.join(refused)}")

    @contextmanager
    def _connected(self) -> Iterator[smtplib.SMTP]:
        import smtplib
        import ssl

        context = None if self._security == "none" else ssl.create_default_context(cafile=self._ca)
        with connected(self._host, self._port, context if self._security == "tls" else None) as stream:

            class OverStream(smtplib.SMTP):
                def _get_socket(self, host: str, port: int, timeout: float) -> socket:
                    return stream

            server = OverStream(self._host, self._port)
            try:
                if self._security == "starttls":
                    server.starttls(context=context)
                if self._user is not None and self._password is not None:
                    server.login(self._user, self._password)
                yield server
                with suppress(OSError):  # it has taken the mail
                    server.quit()
            finally:
                server.close()


def _server(text: str, port: int) -> tuple[str, int]:
    host, _, given = text.rpartition(":") if ":" in text else (text, "", str(port))
    number = read_number(given)
    if not host or not number or number > 65_535:
        raise InvalidArgument(
            f"alarm_mail_server is {shown(text)}, expected HOST:PORT", field="alarm_mail_server", value=shown(text)
        )
    return host.strip("[]"), number


def _addresses(field: str, text: str | None, most: int = 20) -> list[str]:
    found = [each.strip() for each in (text or "").split(",")]
    if not 1 <= len(found) <= most or not all(_ADDRESS.fullmatch(each) for each in found):
        raise InvalidArgument(f"{field} is {text!a}, expected 1 to {most} addresses of mail", field=field, value=text)
    return found
