"""Tags: what an event is about, beside its aggregate, such as `course:c1`; and its subject: the person whose data it has. They
are stored with it, around its metadata.

An event that has tags, or a subject, has its metadata in an *envelope*:

     0         1          2
    +---------+----------+--------+------------+-----+----------+----------------+------------+
    | holds   | tags     | length | tag, UTF-8 | ... | length   | subject, UTF-8 | metadata   |
    +---------+----------+--------+------------+-----+----------+----------------+------------+

`holds`: bit 0: tags, with their number; bit 1: a subject; bit 7: metadata follow. The other bits have no meaning yet, and a
reader that meets one refuses the event. The tags ascend by their bytes, each once, so that equal events have equal bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final

from eventstore.errors import InvalidArgument

TAGGED: Final = 4
"""The bit of an event's format that says that its metadata are in an envelope."""
SEALED: Final = 8
"""The bit that says that its data are encrypted, by the key of the subject that the envelope names."""
TAGS_MAX: Final = 32
TAG_BYTES_MAX: Final = 255
SUBJECT_BYTES_MAX: Final = 240
"""So that `$erased{SUBJECT}` is an aggregate id."""


_TAGS: Final = 0x01
_SUBJECT: Final = 0x02
_METADATA: Final = 0x80
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f]")


class TaggedEvents(bytes):
    """The packed events of a commit of which some have tags; `tags` are those of all of them, each once."""

    tags: Sequence[str]


def joined(events: Sequence[bytes]) -> bytes:
    """Returns packed events, one after the other: `TaggedEvents` if some have tags."""
    packed = b"".join(events)
    if TaggedEvents not in set(map(type, events)):
        return packed
    tags = chain.from_iterable(each.tags for each in events if isinstance(each, TaggedEvents))
    return with_tags(packed, tuple(dict.fromkeys(tags)))


def with_tags(packed: bytes, tags: Sequence[str]) -> TaggedEvents:
    """Returns packed events that have these tags."""
    events = TaggedEvents(packed)
    events.tags = tags
    return events


def checked_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Returns the tags as they are stored: in the order of their bytes, each once.

    Raises:
        InvalidArgument: a tag is not text of 1 to 255 bytes, or holds a control character; there are more than 32.
    """
    try:
        names = None if isinstance(tags, str | bytes) else set(tags)
    except TypeError:
        names = None
    if names is None:
        raise InvalidArgument(f"tags is {tags!r:.80}; give a list of tags", field="tags", value=f"{tags!r:.80}")
    if len(names) > TAGS_MAX:
        raise InvalidArgument(f"{len(names)} tags, the limit is {TAGS_MAX}", field="tags", limit=TAGS_MAX, value=len(names))
    for name in names:
        _check_name(name, "tags", "a tag")
    return tuple(sorted(names))  # code points ascend as the bytes of UTF-8 do


def _check_name(name: object, field: str, what: str, high: int = TAG_BYTES_MAX) -> str:
    if not isinstance(name, str):
        raise InvalidArgument(f"{what} must be text, not {name!r:.80}", field=field, value=f"{name!r:.80}")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidArgument(f"{what} is not UTF-8: {name!a:.80}", field=field, value=f"{name!a:.80}") from None
    if not 0 < size <= high:
        limit = high if size else 1
        raise InvalidArgument(f"{what} has {size} bytes, allowed are 1 to {high}", field=field, limit=limit, value=size)
    if _CONTROL.search(name):
        raise InvalidArgument(f"{what} {name!a:.80} holds a control character", field=field, value=f"{name!a:.80}")
    return name


def check_subject(name: object) -> str:
    """Returns the name of a subject: text of 1 to 240 bytes without control characters, not beginning with $. Raises
    InvalidArgument.
    """
    subject = _check_name(name, "subject", "the subject", SUBJECT_BYTES_MAX)
    if subject[0] == "$":
        raise InvalidArgument(f"the subject {subject!a:.80} is reserved: it begins with $", field="subject", value=subject[:80])
    return subject


def enveloped(tags: Sequence[str], metadata: bytes | None, subject: str | None = None) -> bytes:
    """Returns the envelope of these tags, as `checked_tags` returns them, of the subject, and the metadata."""
    holds = (_TAGS if tags else 0) | (0 if subject is None else _SUBJECT) | (0 if metadata is None else _METADATA)
    parts = [bytes((holds, len(tags))) if tags else bytes((holds,))]
    for name in tags if subject is None else (*tags, subject):
        raw = name.encode()
        parts += (bytes((len(raw),)), raw)
    return b"".join(parts if metadata is None else (*parts, metadata))


def tags_in(envelope: bytes) -> tuple[str, ...]:
    """Returns the tags in an envelope. Raises ValueError: it is malformed, or holds what this program does not know."""
    return _opened(envelope)[0]


def subject_in(envelope: bytes) -> str | None:
    """Returns the subject in an envelope; None if there is none. Raises ValueError, as `tags_in`."""
    if envelope[0] & ~_METADATA == _SUBJECT and len(envelope) >= (end := 2 + envelope[1]):  # most have no tags
        return str(envelope[2:end], "utf-8")
    return _opened(envelope)[1]


def metadata_in(envelope: bytes) -> bytes | None:
    """Returns the metadata in an envelope. Raises ValueError, as `tags_in`."""
    return envelope[_opened(envelope)[2] :] if envelope[0] & _METADATA else None


def check_envelope(envelope: bytes, *, sealed: bool = False) -> tuple[str, ...]:
    """Returns the tags in an envelope from outside. Raises InvalidArgument unless it is as `enveloped` makes it, with a subject
    exactly if the event is `sealed`.
    """
    try:
        found, subject, _ = _opened(envelope)
    except (ValueError, IndexError) as error:
        raise InvalidArgument(f"the tags of an event are malformed: {error}", field="tags") from None
    if sealed:
        check_subject(subject)
    elif subject is not None:
        raise InvalidArgument(f"an event names the subject {subject!a:.80}, and is not encrypted", field="subject")
    if not (0 if sealed else 1) <= len(found) <= TAGS_MAX:
        raise InvalidArgument(f"{len(found)} tags, allowed are 1 to {TAGS_MAX}", field="tags", limit=TAGS_MAX, value=len(found))
    if _CONTROL.search("".join(found)):
        raise InvalidArgument("a tag of an event holds a control character", field="tags")
    return found


def _opened(envelope: bytes) -> tuple[tuple[str, ...], str | None, int]:
    """Returns the tags, the subject, and where the metadata begin."""
    holds, at = envelope[0], 1
    kinds = holds & ~_METADATA
    if not 0 < kinds <= _TAGS | _SUBJECT:
        raise ValueError(f"an event holds {holds:#04x}, which this program does not know; use a newer one")
    found: list[str] = []
    if kinds & _TAGS:
        count, at = envelope[1], 2
        if not count:
            raise ValueError("it says that there are tags, and has none")
        before = ""  # code points ascend as the bytes of UTF-8 do
        for _ in range(count):
            end = at + 1 + envelope[at]
            tag = str(envelope[at + 1 : end], "utf-8")
            if tag <= before:
                raise ValueError("its tags do not ascend, or one is empty")
            found.append(tag)
            before, at = tag, end
    subject = None
    if kinds & _SUBJECT:
        end = at + 1 + envelope[at]
        subject, at = str(envelope[at + 1 : end], "utf-8"), end
    if at > len(envelope) or (at < len(envelope) and not holds & _METADATA):
        raise ValueError(f"its tags end at byte {at} of {len(envelope)}")
    return tuple(found), subject, at
