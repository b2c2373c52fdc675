"""Posts a notice to an address, signed so that its receiver knows from whom it is, and when.

`Eventstore-Signature: t=SECONDS,v1=HEX`, where HEX is the HMAC-SHA256 of `SECONDS.BODY`. A receiver computes the same, compares
in constant time, and refuses an old signature. So no notice can be made or replayed without the key.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from eventstore.alarms.notice import Notice
from eventstore.alarms.receiver import connected
from eventstore.errors import InvalidArgument
from eventstore.fields import shown_url
from eventstore.settings.alarms import AlarmSettings

if TYPE_CHECKING:
    import ssl

SIGNATURE: Final = "Eventstore-Signature"
_PORTS: Final = {False: 80, True: 443}


class Webhook:
    """Where notices are posted. `send` blocks, for a thread."""

    name = "webhook"

    def __init__(self, settings: AlarmSettings) -> None:
        """Raises InvalidArgument: the address is not valid, or a file cannot be used."""
        where, address = _address(settings)
        try:
            parts = urlsplit(address)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1 or "@" in parts.netloc:
            raise InvalidArgument(
                f"{where} is {shown_url(address)}, expected http://HOST/PATH or https://HOST/PATH, without a user or password",
                field=where,
                value=shown_url(address),
            )
        self._secure, self._host = parts.scheme == "https", parts.hostname
        self._port = port or _PORTS[self._secure]
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._key = secret_in("alarm_webhook_secret_file", settings.webhook_secret_file)
        self._ca = settings.ca_file

    def send(self, notice: Notice) -> None:
        """Posts a notice. Raises OSError: it was not taken."""
        import http.client

        body, seconds = notice.json(), int(time.time())
        headers = {"Content-Type": "application/json", "User-Agent": "eventstore"}
        if self._key is not None:
            headers[SIGNATURE] = f"t={seconds},v1={signature(self._key, seconds, body)}"
        with connected(self._host, self._port, self._context()) as stream:
            connection = http.client.HTTPConnection(self._host, self._port)
            connection.default_port = _PORTS[self._secure]  # which is not named in the header Host
            connection.sock = stream
            try:
                connection.request("POST", self._path, body, headers)
                status = connection.getresponse().status  # it has taken the notice, or not, whatever follows
            except http.client.HTTPException as error:
                raise OSError(f"no answer of HTTP: {type(error).__name__}") from None
            finally:
                connection.close()
            if not 200 <= status < 300:  # in the block: the status may be the beginning of one that took too long
                raise OSError(f"it answered {status}")

    def _context(self) -> ssl.SSLContext | None:
        import ssl

        return ssl.create_default_context(cafile=self._ca) if self._secure else None


def _address(settings: AlarmSettings) -> tuple[str, str]:
    """Returns the setting that has the address, and the address. Raises InvalidArgument."""
    if settings.webhook_file is None:
        return "alarm_webhook", settings.webhook or ""
    if settings.webhook is not None:
        raise InvalidArgument("alarm_webhook and alarm_webhook_file say the same; leave one out", field="alarm_webhook_file")
    found = secret_in("alarm_webhook_file", settings.webhook_file)
    assert found is not None, "the file is given"
    return "alarm_webhook_file", found.decode(errors="replace")


def signature(key: bytes, seconds: int, body: bytes) -> str:
    """Returns the signature of a body that is posted at a time."""
    return hmac.new(key, b"%d.%s" % (seconds, body), hashlib.sha256).hexdigest()


def secret_in(field: str, path: str | None) -> bytes | None:
    """Returns what a file holds, without white space around it; None without a file. Raises InvalidArgument."""
    if path is None:
        return None
    try:
        found = Path(path).read_bytes().strip()
    except OSError as error:
        raise InvalidArgument(f"{field} {path} cannot be read: {error.strerror}", field=field, value=path) from None
    if not found:
        raise InvalidArgument(f"{field} {path} is empty", field=field, value=path)
    return found
