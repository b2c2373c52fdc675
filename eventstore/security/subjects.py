"""The subject of a certificate as text, such as `CN=billing,O=Example`: what an access list knows a certificate by.

The parts are in the order of the certificate. In a value a comma, a plus, an equals sign, a quote, a backslash, and a first or
last space have a backslash before them, so that no value can pass for several parts, or loses spaces where text is trimmed.
"""

from __future__ import annotations

import re
from _ssl import txt2obj  # what Purpose of ssl is made with: the table of names of OpenSSL, which getpeercert uses
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from ssl import cert_time_to_seconds
from typing import Any, Final

from eventstore.errors import InvalidArgument
from eventstore.fields import shown

_SHORT: Final = {"commonName": "CN", "organizationName": "O", "organizationalUnitName": "OU", "countryName": "C"}
_SPECIAL: Final = re.compile(r'[,+="\\]|^ | $')
_NUMBER: Final = re.compile(r"\d+(\.\d+)+")
_PART: Final = re.compile(
    r"""[ ]*+ (?P<name> [A-Za-z0-9.-]++ ) [ ]*+ = [ ]*+
    (?: " (?P<quoted> (?: [^"\\] | \\. )*+ ) "
      | (?!") (?P<bare> (?: [^,+=\\ ] | \\. | [ ]++ (?! [,+] | \Z ) )*+ ) )
    [ ]*+ (?P<end> [,+] | \Z )""",
    re.VERBOSE | re.DOTALL,
)
"""A part of a subject as `openssl x509 -subject` prints it, or `subject_text`."""
_CHARACTER: Final = re.compile(r"\\([0-9A-Fa-f]{2})|\\?(.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Shown:
    """What a verified certificate says of the other side.

    Attributes:
        expires: None: it is unknown.
    """

    subject: str
    expires: datetime | None = None


def shown_by(found: Any) -> Shown | None:
    """Returns what a certificate says, in the form that `getpeercert` returns; None: no certificate was shown."""
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
    """Returns a subject in the form of `subject_text`, from that form or from what `openssl x509 -subject` prints: with short
    names, spaces around names and values, values in quotes, and bytes as hexadecimal digits.

    Raises:
        InvalidArgument: it is not a subject.
    """
    try:
        return ",".join(f"{_name_of(name)}={_escaped(value)}" for name, value in _parts(text))
    except ValueError as error:
        raise InvalidArgument(
            f"{shown(text)} is not a subject such as CN=billing or C=DE,O=Example,CN=billing: {error} (in a value \\ stands "
            "before , + = \" \\); the server's log shows the subject of a certificate that it refused",
            field="certificate",
            value=shown(text),
        ) from None


def _parts(text: str) -> Iterator[tuple[str, str]]:
    """Yields the names and values. Raises ValueError."""
    at, more = 0, True
    while more:
        found = _PART.match(text, at)
        if found is None:
            raise ValueError(f"at character {at + 1} is no NAME=VALUE")
        yield found["name"], _unescaped(found["bare"] if found["quoted"] is None else found["quoted"])
        at, more = found.end(), found["end"] != ""


def _name_of(name: str) -> str:
    """Returns the name that `subject_text` has for an attribute. Raises ValueError: no certificate has it."""
    try:
        _, _, long, _ = txt2obj(name, name=True)
    except ValueError:
        if _NUMBER.fullmatch(name):  # of an attribute that OpenSSL has no name for
            return name
        raise ValueError(f"OpenSSL knows no attribute {name}") from None
    return _SHORT.get(long, long)


def _unescaped(value: str) -> str:
    """Returns a value without its escapes. Raises ValueError: its bytes are not UTF-8."""
    try:
        return b"".join(bytes.fromhex(code) if code else each.encode() for code, each in _CHARACTER.findall(value)).decode()
    except UnicodeError:
        raise ValueError("a value is not UTF-8") from None


def _escaped(value: str) -> str:
    return _SPECIAL.sub(r"\\\g<0>", value)
