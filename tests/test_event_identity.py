"""The identity of an event that checkpoints keep."""

from __future__ import annotations

import pytest

from eventstore.errors import Diverged, InvalidArgument
from eventstore.event_identity import LogPosition, check_identity, event_identity
from eventstore.model import Event

FIELDS = ("order-1", 3, "Paid", b"{}", b"", "c-1", 1_000_000, 12, 0)


def test_it_follows_from_every_field_but_the_sequence() -> None:
    others = [
        ("order-2", *FIELDS[1:]),
        (*FIELDS[:1], 4, *FIELDS[2:]),
        (*FIELDS[:2], "PaidC", *FIELDS[3:]),
        (*FIELDS[:3], b"{ }", *FIELDS[4:]),
        (*FIELDS[:4], None, *FIELDS[5:]),
        (*FIELDS[:5], "-1", *FIELDS[6:]),
        (*FIELDS[:6], 1_000_001, *FIELDS[7:]),
    ]
    identities = {event_identity(Event(fields)) for fields in (FIELDS, *others)}
    assert len(identities) == 1 + len(others)
    assert event_identity(Event((*FIELDS[:7], 99, 0))) == event_identity(Event(FIELDS))


def test_a_missing_event_or_another_one_is_diverged_for_good() -> None:
    recorded = event_identity(Event(FIELDS))
    check_identity("table 'orders'", 12, recorded, Event(FIELDS), "rebuild it")
    with pytest.raises(
        Diverged, match=r"table 'orders' stands at the event of sequence 12, but the store has no such.*rebuild it"
    ):
        check_identity("table 'orders'", 12, recorded, None, "rebuild it")
    with pytest.raises(Diverged, match="another event there") as raised:
        check_identity("table 'orders'", 12, recorded, Event((*FIELDS[:5], "c-2", *FIELDS[6:])), "rebuild it")
    assert (raised.value.what, raised.value.sequence) == ("table 'orders'", 12)


def test_a_place_has_eight_digits_of_the_identity_and_survives_its_text() -> None:
    event = Event(FIELDS)
    place = LogPosition.at(event)
    assert place == (12, event_identity(event)[:8])
    check_identity("a position", *place, event, "read again")
    with pytest.raises(Diverged):
        check_identity("a position", *place, Event((*FIELDS[:5], "c-2", *FIELDS[6:])), "read again")
    for each in (place, LogPosition(12), LogPosition(0)):
        assert LogPosition.parse("after", str(each)) == each


@pytest.mark.parametrize(
    "text", ["", "-1", "0-00000000", "01", "1-", "1-0000000", "1-000000000", "1-ABCDEF00", "1-0000000g", "٣", str(2**63), "1\n"]
)
def test_text_that_is_no_place_is_refused_with_its_field(text: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        LogPosition.parse("after", text)
    assert refused.value.fields["field"] == "after"


def test_less_than_eight_digits_of_an_identity_identify_nothing() -> None:
    event = Event(FIELDS)
    for digits in (0, 4, 7, 9, 31):
        with pytest.raises(Diverged):
            check_identity("a position", 12, event_identity(event)[:digits], event, "read again")
