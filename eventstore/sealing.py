"""Encrypts the data of events by the key of their subject, and decrypts them. Clients do; a store keeps what they have made.

Sealed data are

     0         1                     13
    +---------+---------------------+------------------------------+----------------+
    | 1       | nonce (12)          | ciphertext, as long as data  | tag (16)       |
    +---------+---------------------+------------------------------+----------------+

by AES-256-GCM. The nonce is BLAKE2b, keyed with a second key, of what is encrypted and of where it belongs: a synthetic one, as
in SIV. So the same event of the same command has the same bytes whenever it is encrypted, and the store recognizes a repeated
append by its bytes, as any other; and different data have different nonces, but for a chance of 2^-33 among 2^32 events of one
subject. Both keys follow from the subject's secret.

Where it belongs is authenticated: aggregate id, command id, the place of the event among those of its commit on the aggregate,
its type. Sealed data that were copied to another place do not open there.
"""

from __future__ import annotations

import os
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from eventstore.errors import Corrupt, InvalidArgument
from eventstore.extras import advice
from eventstore.model import NewEvent, PersonalEvent, UnsealedEvent

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

SECRET_BYTES: Final = 32
EXTRA: Final = "personal"
_KIND: Final = b"\x01"
_NONCE_BYTES: Final = 12
_SEALED_FROM: Final = 1 + _NONCE_BYTES


def missing_extra() -> InvalidArgument:
    """Returns the error of who needs to encrypt, and has no library for it."""
    return InvalidArgument(
        f"events with a subject are encrypted, for which a library is missing; {advice(EXTRA)}", field="subject"
    )


def can_seal() -> bool:
    """Whether the library is there."""
    try:
        import cryptography  # noqa: F401
    except ImportError:
        return False
    return True


def fresh_secret() -> bytes:
    """Returns a new secret for a subject."""
    return os.urandom(SECRET_BYTES)


class SubjectKey:
    """Encrypts and decrypts the data of one subject."""

    __slots__ = ("_aead", "_nonces")

    def __init__(self, secret: bytes) -> None:
        """Raises InvalidArgument: the library is missing."""
        self._aead = aead(_derived(secret, b"data"))
        self._nonces = blake2b(digest_size=_NONCE_BYTES, key=_derived(secret, b"nonces"))

    def sealed(self, event: NewEvent, aggregate_id: str, command_id: str, place: int) -> NewEvent:
        """Returns the event with its data encrypted."""
        format_, type_, data, envelope = event
        where = _where(aggregate_id, command_id, place, type_)
        digest = self._nonces.copy()
        digest.update(b"%d " % len(where))
        digest.update(where)
        digest.update(data)
        nonce = digest.digest()
        return tuple.__new__(NewEvent, (format_, type_, _KIND + nonce + self._aead.encrypt(nonce, data, where), envelope))

    def open(self, event: PersonalEvent) -> None:
        """Decrypts the data of the event, in it. Raises Corrupt: they are not what was encrypted, here, by this key."""
        stored = event[3]
        where = _where(event[0], event[5], event.place, event[2])
        try:
            if stored[:1] != _KIND:
                raise ValueError(f"sealed in the form {stored[:1].hex() or 'of nothing'}, which this program does not know")
            event.opened = self._aead.decrypt(stored[1:_SEALED_FROM], stored[_SEALED_FROM:], where)
        except Exception as error:  # the library's own has no message
            what = (
                f"the data of event {event[1]} of aggregate {event[0]!r} are not what was encrypted there, or not by this key"
            )
            raise Corrupt("events", 0, f"{what} ({error or type(error).__name__})") from None


def seal_events(events: list[NewEvent], keys: dict[str, SubjectKey], aggregate_id: str, command_id: str) -> list[NewEvent]:
    """Returns the events, those with a subject encrypted. `keys`: of all their subjects."""
    return [
        keys[event.subject or ""].sealed(event, aggregate_id, command_id, place) if isinstance(event, UnsealedEvent) else event
        for place, event in enumerate(events)
    ]


def aead(key: bytes) -> AESGCM:
    """Returns AES-256-GCM of this key. Raises InvalidArgument: the library is missing."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise missing_extra() from None
    made: Any = AESGCM(key)
    return made  # type: ignore[no-any-return]


def _derived(secret: bytes, use: bytes) -> bytes:
    return blake2b(key=secret, person=use, digest_size=SECRET_BYTES).digest()


def _where(aggregate_id: str, command_id: str, place: int, type_: str) -> bytes:
    return f"{len(aggregate_id)} {len(command_id)} {place} {aggregate_id}{command_id}{type_}".encode()
