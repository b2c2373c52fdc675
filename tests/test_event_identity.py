"""The identity of an event that checkpoints keep."""

from __future__ import annotations

import pytest

from eventstore.errors import Diverged
from eventstore.event_identity import check_identity, event_identity
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
