"""The envelope of an event: its tags, its subject, its metadata."""

from __future__ import annotations

import pytest

from eventstore.errors import InvalidArgument
from eventstore.tags import SUBJECT_BYTES_MAX, check_envelope, check_subject, enveloped, metadata_in, subject_in, tags_in


@pytest.mark.parametrize("tags", [(), ("a",), ("a", "course:c1", "ö")])
@pytest.mark.parametrize("subject", [None, "c", "customer:c-17", "Zoë", "s" * SUBJECT_BYTES_MAX])
@pytest.mark.parametrize("metadata", [None, b"", b"{}", b"\x02x" * 300])
def test_what_is_put_into_an_envelope_is_found_in_it(
    tags: tuple[str, ...], subject: str | None, metadata: bytes | None
) -> None:
    if not tags and subject is None:
        return  # then there is none
    made = enveloped(tags, metadata, subject)
    assert (tags_in(made), subject_in(made), metadata_in(made)) == (tags, subject, metadata)
    assert check_envelope(made, sealed=subject is not None) == tags
    with pytest.raises(InvalidArgument):
        check_envelope(made, sealed=subject is None)


def test_an_envelope_from_outside_that_is_cut_or_unknown_is_refused() -> None:
    made = enveloped(("a", "b"), b"{}", "customer:c-17")
    for end in range(len(made) - 2):
        with pytest.raises(InvalidArgument):
            check_envelope(made[:end], sealed=True)
    for holds in range(256):
        if holds & 0x7F not in (1, 2, 3):
            with pytest.raises(InvalidArgument):
                check_envelope(bytes((holds,)) + made[1:], sealed=True)


@pytest.mark.parametrize("name", ["", "$erased", "a\nb", "s" * (SUBJECT_BYTES_MAX + 1), "\ud800", 7, None])
def test_what_cannot_name_a_subject_is_refused(name: object) -> None:
    with pytest.raises(InvalidArgument):
        check_subject(name)
