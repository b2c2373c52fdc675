"""Tags: what an event is about, beside its aggregate, such as `course:c1`. They are stored with it, around its metadata.

An event that has tags has its metadata in an *envelope*:

     0         1          2
    +---------+----------+--------+------------+-----+------------+
    | holds   | tags     | length | tag, UTF-8 | ... | metadata   |
    +---------+----------+--------+------------+-----+------------+

`holds`: bit 0: tags; bit 7: metadata follow. The other bits have no meaning yet, and a reader that meets one refuses the event.
The tags ascend by their bytes, each once, so that equal events have equal bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final

from eventstore.errors import InvalidArgument

TAGGED: Final = 4
"""The bit of an event's format that says that its metadata are in an envelope."""
TAGS_MAX: Final = 32
TAG_BYTES_MAX: Final = 255

_TAGS: Final = 0x01
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
        _check_tag(name)
    return tuple(sorted(names))  # code points ascend as the bytes of UTF-8 do


def _check_tag(name: object) -> None:
    if not isinstance(name, str):
        raise InvalidArgument(f"a tag must be text, not {name!r:.80}", field="tags", value=f"{name!r:.80}")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidArgument(f"a tag is not UTF-8: {name!a:.80}", field="tags", value=f"{name!a:.80}") from None
    if not 0 < size <= TAG_BYTES_MAX:
        limit = TAG_BYTES_MAX if size else 1
        what = f"a tag has {size} bytes, allowed are 1 to {TAG_BYTES_MAX}"
        raise InvalidArgument(what, field="tags", limit=limit, value=size)
    if _CONTROL.search(name):
        raise InvalidArgument(f"the tag {name!a:.80} holds a control character", field="tags", value=f"{name!a:.80}")


def enveloped(tags: Sequence[str], metadata: bytes | None) -> bytes:
    """Returns the envelope of these tags, as `checked_tags` returns them, and the metadata."""
    holds = _TAGS if metadata is None else _TAGS | _METADATA
    parts = [bytes((holds, len(tags)))]
    for tag in tags:
        raw = tag.encode()
        parts += (bytes((len(raw),)), raw)
    return b"".join(parts if metadata is None else (*parts, metadata))


def tags_in(envelope: bytes) -> tuple[str, ...]:
    """Returns the tags in an envelope. Raises ValueError: it is malformed, or holds what this program does not know."""
    return _opened(envelope)[0]


def metadata_in(envelope: bytes) -> bytes | None:
    """Returns the metadata in an envelope. Raises ValueError, as `tags_in`."""
    return envelope[_opened(envelope)[1] :] if envelope[0] & _METADATA else None


def check_envelope(envelope: bytes) -> tuple[str, ...]:
    """Returns the tags in an envelope from outside. Raises InvalidArgument unless it is as `enveloped` makes it."""
    try:
        found, _ = _opened(envelope)
    except (ValueError, IndexError) as error:
        raise InvalidArgument(f"the tags of an event are malformed: {error}", field="tags") from None
    if not 0 < len(found) <= TAGS_MAX:
        raise InvalidArgument(f"{len(found)} tags, allowed are 1 to {TAGS_MAX}", field="tags", limit=TAGS_MAX, value=len(found))
    if _CONTROL.search("".join(found)):
        raise InvalidArgument("a tag of an event holds a control character", field="tags")
    return found


def _opened(envelope: bytes) -> tuple[tuple[str, ...], int]:
    """Returns the tags, and where they end."""
    holds, count, at = envelope[0], envelope[1], 2
    if holds & ~_METADATA != _TAGS:
        raise ValueError(f"an event holds {holds:#04x}, which this program does not know; use a newer one")
    found: list[str] = []
    before = ""  # code points ascend as the bytes of UTF-8 do
    for _ in range(count):
        end = at + 1 + envelope[at]
        tag = str(envelope[at + 1 : end], "utf-8")
        if tag <= before:
            raise ValueError("its tags do not ascend, or one is empty")
        found.append(tag)
        before, at = tag, end
    if at > len(envelope) or (at < len(envelope) and not holds & _METADATA):
        raise ValueError(f"its tags end at byte {at} of {len(envelope)}")
    return tuple(found), at
