"""The subject of a certificate as text, such as `CN=billing,O=Example`: what an access list knows a certificate by.

The parts are in the order of the certificate. A comma, a plus, an equals sign or a backslash in a value has a backslash before
it, so that no value can pass for several parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from ssl import cert_time_to_seconds
from typing import Any, Final

from eventstore.errors import InvalidArgument
from eventstore.fields import shown

_SHORT: Final = {"commonName": "CN", "organizationName": "O", "organizationalUnitName": "OU", "countryName": "C"}
_LONG: Final = {"ST": "stateOrProvinceName", "L": "localityName", "DC": "domainComponent", "UID": "userId"}
"""Names that `openssl x509 -subject` prints, and those that `ssl` has for them."""
_ESCAPED: Final = ",+=\\"


@dataclass(frozen=True, slots=True)
class Shown:
    """What a verified certificate says of whoever showed it. `expires`: None: it is unknown."""

    subject: str
    expires: datetime | None = None


def shown_by(found: Any) -> Shown | None:
    """Returns that of a certificate as `getpeercert` returns it; None: no certificate was shown."""
    if not found:
        return None
    end = found.get("notAfter")
    return Shown(
        subject_text(found.get("subject", ())), None if end is None else datetime.fromtimestamp(cert_time_to_seconds(end), UTC)
    )


def subject_text(subject: object) -> str:
    """Returns a subject, as `getpeercert` gives it, as text."""
    pairs = [pair for part in subject for pair in part]  # type: ignore[attr-defined] # tuples of tuples of pairs
    return ",".join(f"{_SHORT.get(name, name)}={_escaped(value)}" for name, value in pairs)


def parsed_subject(text: str) -> str:
    """Returns a subject that somebody typed in the form of `subject_text`: spaces around names and values do not count, and
    names may be those of openssl.

    Raises:
        InvalidArgument: it is not a subject.
    """
    parts = []
    for part in _split(text, ","):
        name, *values = _split(part, "=")
        if len(values) != 1 or not name.strip() or '"' in part:
            raise InvalidArgument(
                f"{shown(text)} is not a subject such as CN=billing or C=DE,O=Example,CN=billing (in a value \\ stands before "
                ", + = \\); the server's log shows the subject of a certificate that it refused",
                field="certificate",
                value=shown(text),
            )
        name, value = name.strip(), values[0].strip()
        parts.append(f"{_LONG.get(name, name)}={value}")
    return ",".join(parts)


def _split(text: str, separator: str) -> list[str]:
    """Splits at each separator that has no backslash before it; what is escaped stays so."""
    parts, at, begin = [], 0, 0
    while at < len(text):
        if text[at] == "\\":
            at += 1
        elif text[at] == separator:
            parts.append(text[begin:at])
            begin = at + 1
        at += 1
    return [*parts, text[begin:]]


def _escaped(value: str) -> str:
    return "".join(f"\\{each}" if each in _ESCAPED else each for each in value)
