"""Events from clients are refused with field, limit and value, or stored in the canonical encoding."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventstore import flat
from eventstore.errors import InvalidArgument
from eventstore.model import ANY, COMMIT_BYTES_MAX, COMMIT_EVENTS_MAX, EVENT_BYTES_MAX, NewEvent
from eventstore.store.append import COMMITTED, DUPLICATE, REFUSED
from eventstore.store.event_checks import EventsCheck, is_plain_event
from tests.store.conftest import Maker
from tests.store.stepped import events_bytes

check = EventsCheck()

texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=60).filter(lambda text: len(text.encode()) <= 255)
metadata = st.none() | st.binary(max_size=300)
events = st.builds(NewEvent, texts, st.binary(max_size=400), metadata)


def refusal(raw: bytes) -> InvalidArgument:
    with pytest.raises(InvalidArgument) as refused:
        check(raw)
    return refused.value


@given(st.lists(events, min_size=1, max_size=5))
def test_events_from_a_client_are_stored_byte_for_byte(made: list[NewEvent]) -> None:
    raw = events_bytes(made)
    count, canonical = check(raw)
    assert (count, canonical) == (len(made), raw)
    assert canonical is raw, "and not copied"


@given(events)
def test_the_fast_check_of_a_plain_event_agrees_with_decoding(event: NewEvent) -> None:
    raw = events_bytes([event])
    if is_plain_event(raw):
        assert event.type.isascii()
        assert len(event.type) < 32
        assert event.metadata is None
    elif event.metadata is None and event.type.isascii() and len(event.type) < 32:
        pytest.fail("it is the most frequent shape")


@given(st.binary(max_size=60))
def test_random_bytes_are_refused_or_equal_their_decoded_events(raw: bytes) -> None:
    try:
        count, canonical = check(raw)
    except InvalidArgument:
        assert not is_plain_event(raw)
        return
    values = msgpack.unpackb(b"\xdd" + (4 * count).to_bytes(4, "big") + canonical, use_list=False)
    assert flat.encode(values) == canonical
    assert all(isinstance(values[at], int) and 0 <= values[at] <= 7 for at in range(0, 4 * count, 4))


@given(st.builds(NewEvent, texts, st.binary(max_size=70_000), metadata), st.data())
def test_a_plain_event_with_a_flipped_bit_is_rejected_or_another_canonical_event(event: NewEvent, data: st.DataObject) -> None:
    raw = bytearray(events_bytes([event]))
    raw[data.draw(st.integers(0, min(len(raw) - 1, 40)))] ^= 1 << data.draw(st.integers(0, 7))
    damaged = bytes(raw)
    if is_plain_event(damaged):
        values = msgpack.unpackb(b"\x94" + damaged, use_list=False)
        assert flat.encode(values) == damaged


LONG_FORMS = {
    "format as int 32": b"\xd2\x00\x00\x00\x01" + b"\xa1T" + b"\xc4\x01d" + b"\xc0",
    "format as uint 8": b"\xcc\x01" + b"\xa1T" + b"\xc4\x01d" + b"\xc0",
    "type as str 8": b"\x01" + b"\xd9\x01T" + b"\xc4\x01d" + b"\xc0",
    "type as str 32": b"\x01" + b"\xdb\x00\x00\x00\x01T" + b"\xc4\x01d" + b"\xc0",
    "data as bin 16": b"\x01" + b"\xa1T" + b"\xc5\x00\x01d" + b"\xc0",
    "data as bin 32": b"\x01" + b"\xa1T" + b"\xc6\x00\x00\x00\x01d" + b"\xc0",
}


@pytest.mark.parametrize("name", LONG_FORMS)
def test_a_longer_encoding_is_stored_in_the_canonical_one(name: str, opened: Maker) -> None:
    canonical = b"\x01\xa1T\xc4\x01d\xc0"
    assert not is_plain_event(LONG_FORMS[name])
    assert check(LONG_FORMS[name]) == (1, canonical)
    store = opened()
    first = store.append(("order", ANY, "command", 1, LONG_FORMS[name]))
    assert first[0][0] == COMMITTED
    assert store.append(("order", ANY, "command", 1, canonical)) == [(DUPLICATE, *first[0][1:])], "it is the same command"


EVENT = events_bytes([NewEvent("T", b"d")])
BAD = {
    "nothing": b"",
    "three values": EVENT[:-1],
    "five values": EVENT + b"\xc0",
    "a cut off value": EVENT[:-2],
    "an array": b"\x94" + EVENT,
    "an array for data": b"\x00\xa1T\x90\xc0",
    "a map for data": b"\x00\xa1T\x80\xc0",
    "an extension": b"\x00\xa1T\xd4\x01\x00\xc0",
    "a true format": b"\xc3\xa1T\xc4\x01d\xc0",
    "a false format": b"\xc2\xa1T\xc4\x01d\xc0",
    "a nil format": b"\xc0\xa1T\xc4\x01d\xc0",
    "a negative format": b"\xff\xa1T\xc4\x01d\xc0",
    "a float": b"\xcb\x3f\xf0\x00\x00\x00\x00\x00\x00\xa1T\xc4\x01d\xc0",
    "an unknown format": b"\x10\xa1T\xc4\x01d\xc0",
    "tags that are missing": b"\x04\xa1T\xc4\x01d\xc0",
    "an empty type": b"\x00\xa0\xc4\x01d\xc0",
    "a type of bytes": b"\x00\xc4\x01T\xc4\x01d\xc0",
    "a type that is not UTF-8": b"\x00\xa2\xff\xfe\xc4\x01d\xc0",
    "a type that is a lone surrogate": b"\x00\xa3\xed\xa0\x80\xc4\x01d\xc0",
    "data of text": b"\x00\xa1T\xa1d\xc0",
    "no data": b"\x00\xa1T\xc0\xc0",
    "metadata of text": b"\x00\xa1T\xc4\x01d\xa1m",
    "metadata of an int": b"\x00\xa1T\xc4\x01d\x07",
    "the reserved byte": b"\xc1\xa1T\xc4\x01d\xc0",
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("beside", [b"", EVENT], ids=["alone", "beside a good one"])
def test_bad_events_are_refused_and_nothing_is_written(name: str, beside: bytes, opened: Maker) -> None:
    error = refusal(beside + BAD[name]) if beside + BAD[name] != EVENT else None
    if error is None:
        return
    assert error.fields["field"] in ("events", "format", "type", "metadata", "tags")
    store = opened()
    ((status, found, _),) = store.append(("order", ANY, "command", 1, beside + BAD[name]))
    assert (status, type(found)) == (REFUSED, InvalidArgument)
    assert store.state() == []


def test_a_broken_limit_is_reported_with_field_limit_and_value() -> None:
    long_type = events_bytes([NewEvent("t" * 256, b"")])
    assert (refusal(long_type).fields["limit"], refusal(long_type).fields["value"]) == (255, 256)
    assert refusal(events_bytes([NewEvent("€" * 86, b"")])).fields["value"] == 258
    assert check(events_bytes([NewEvent("€" * 85, b"")]))[0] == 1
    for meta in (None, b"m" * 1_000):
        size = EVENT_BYTES_MAX - len(meta or b"")
        assert check(events_bytes([NewEvent("T", bytes(size), meta)]))[0] == 1
        error = refusal(events_bytes([NewEvent("T", bytes(size + 1), meta)]))
        assert (error.fields["field"], error.fields["limit"], error.fields["value"]) == (
            "event", EVENT_BYTES_MAX, EVENT_BYTES_MAX + 1,
        )  # fmt: skip
        assert check(events_bytes([NewEvent("T", bytes(size), meta), NewEvent("U", b"", b"m" * 900)]))[0] == 2
    with pytest.raises(InvalidArgument) as commit:
        check(events_bytes([NewEvent("T", bytes(EVENT_BYTES_MAX - 100))] * 4 + [NewEvent("T", bytes(500))]))
    assert commit.value.fields["limit"] == COMMIT_BYTES_MAX
    assert check(EVENT * COMMIT_EVENTS_MAX)[0] == COMMIT_EVENTS_MAX
    assert refusal(EVENT * (COMMIT_EVENTS_MAX + 1)).fields["limit"] == COMMIT_EVENTS_MAX


def test_after_a_refused_commit_the_decoder_works_for_the_next() -> None:
    for bad in BAD.values():
        with pytest.raises(InvalidArgument):
            check(bad + EVENT[:3])
        assert check(EVENT + EVENT) == (2, EVENT + EVENT)


IDS = {
    "empty": "",
    "256 bytes": "x" * 256,
    "258 bytes of three": "€" * 86,
    "a lone surrogate": "\ud800",
    "bytes": b"x",
    "an int": 7,
}


@pytest.mark.parametrize("name", IDS)
def test_bad_ids_are_refused_by_name(name: str, opened: Maker) -> None:
    store = opened()
    bad = IDS[name]
    for ids, field in (((bad, "c"), "aggregate_id"), (("a", bad), "command_id")):
        batch = [("good", "1"), ids, ("good", "2")]
        outcomes = store.append(*((aggregate_id, ANY, command_id, 1, EVENT) for aggregate_id, command_id in batch))  # type: ignore[misc]
        assert outcomes[1][0] == REFUSED
        assert isinstance(outcomes[1][1], InvalidArgument)
        assert outcomes[1][1].fields["field"] == field
        assert outcomes[0][0] == outcomes[2][0] != REFUSED, "the other commits of the batch are unaffected"
    assert [event.command_id for event in store.state()] == ["1", "2"]


@pytest.mark.parametrize("expected", [-1, 2**63, 1.5, "1", -(2**70)])
def test_an_invalid_expected_version_is_refused(expected: object, opened: Maker) -> None:
    store = opened()
    ((status, error, _),) = store.append(("a", expected, "c", 1, EVENT))  # type: ignore[arg-type] # that is the point
    assert (status, type(error)) == (REFUSED, InvalidArgument)
    assert store.state() == []


@pytest.mark.parametrize("when", [2**63, -(2**63) - 1, 2**70, 253_402_300_800_000_000])
def test_an_invalid_time_is_refused_and_the_other_commits_are_stored(when: int, opened: Maker) -> None:
    store = opened()
    outcomes = store.append(("a", ANY, "1", 1, EVENT), ("a", ANY, "2", when, EVENT), ("a", ANY, "3", 1, EVENT))
    assert [outcome[0] for outcome in outcomes] == [COMMITTED, REFUSED, COMMITTED]
    assert [event.version for event in store.reopen().read("a")] == [1, 2]
