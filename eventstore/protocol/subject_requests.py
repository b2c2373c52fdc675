"""The requests about subjects: the people whose data events have, and whose keys a store keeps."""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple, TypeAlias

from eventstore.protocol import limits
from eventstore.protocol.request_declaration import Answered, Flag, Rows, request, text
from eventstore.security.permissions import Permission, on, on_all
from eventstore.tags import check_subject

BECAUSE_BYTES_MAX: Final = 1_000


def _subject(subject: object) -> None:
    check_subject(subject)


def _named(_: str, subject: object) -> None:
    check_subject(subject)


SubjectName: TypeAlias = Annotated[str, _named]


class LeasedKey(NamedTuple):
    """The key of a subject."""

    subject: str
    secret: Annotated[bytes | None, "32 bytes, nil if it has no key"]
    erased: Annotated[bool, "whether it was erased, for good"]

    def __repr__(self) -> str:
        """Does not show the secret."""
        return f"LeasedKey({self.subject!r}, erased={self.erased})"


class LeasedKeys(NamedTuple):
    """The keys of the subjects that were asked for, in this order."""

    lease_s: Annotated[int, "seconds for which they may be used"]
    keys: tuple[LeasedKey, ...]


@request(110, needs=on_all(Permission.SUBJECTS, "subjects"))
class LeaseKeys(Answered[LeasedKeys]):
    """Asks for the keys of subjects. `create`: one that has none, and was not erased, gets one."""

    create: Flag
    subjects: Annotated[tuple[str, ...], Rows(_subject, limits.SUBJECTS_PER_REQUEST_MAX)]


class ErasedSubject(NamedTuple):
    """What became of the keys of a subject."""

    sequence: Annotated[int, "of the record of its erasure"]
    had_key: Annotated[bool, "whether it had a key until now"]
    erased_us: Annotated[int, "when the record was stored, µs since 1970"]
    leased_until_us: Annotated[int, "until when readers may still have its key, µs since 1970"]
    replicas: Annotated[int, "on how many replicas its key is destroyed"]


@request(111, needs=on(Permission.ERASE, "subject"))
class EraseSubject(Answered[ErasedSubject]):
    """Erases a subject: stores a record of it, and destroys its key. Nothing brings it back."""

    subject: SubjectName
    because: Annotated[str, text(1, BECAUSE_BYTES_MAX)]
