from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventstore.cli.transfer.event_lines import LineRefused, format_event, parse_line, with_tags
from eventstore.model import DATA_IS_JSON, METADATA_IS_JSON, Event, NewEvent
from eventstore.tags import checked_tags
from tests.cli.processes import line

NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
JSON_TEXTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
).map(json.dumps)


def _event(event: NewEvent, time: int) -> Event:
    return tuple.__new__(Event, ("a", 3, event[1], event[2], event[3], "c", time, 17, event[0]))


def test_a_line_in_the_usual_order_is_an_event() -> None:
    aggregate_id, command_id, time, event, version, *_ = parse_line(line("order-1", "c-1", "Placed", {"total": 12}))
    assert version == 0
    assert (aggregate_id, command_id, time) == ("order-1", "c-1", 1_769_857_200_000_001)
    assert event == NewEvent("Placed", {"total": 12})


def test_data_is_kept_as_it_is_spelled() -> None:
    text = line("a", "c").replace(":1}", ': { "n": 1.10, "n": 123456789012345678901234567890 } }')
    assert parse_line(text)[3].data == b'{ "n": 1.10, "n": 123456789012345678901234567890 }'


def test_members_may_come_in_any_order_and_spelling() -> None:
    usual = json.loads(line('ä"\\', "c", "T", [1, None], metadata={"by": "me"}, version=9, sequence=99))
    shuffled = json.dumps(dict(reversed(usual.items())), indent=1).replace("\n", " ")
    aggregate_id, _, _, event, version, *_ = parse_line(f"  {shuffled}  ")
    assert version == 9
    assert aggregate_id == 'ä"\\'
    assert (json.loads(event.data), json.loads(event.metadata or b"")) == ([1, None], {"by": "me"})
    assert event[0] == DATA_IS_JSON | METADATA_IS_JSON


@pytest.mark.parametrize("time", ["2026-01-31T11:00:00.000001Z", "2026-01-31T12:00:00.000001+01:00", 1_769_857_200_000_001])
def test_times_are_kept_to_the_microsecond(time: object) -> None:
    assert parse_line(line("a", "c", timestamp=time))[2] == 1_769_857_200_000_001


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "'{' is missing"),
        ("[1]", "'{' is missing"),
        ('"text"', "'{' is missing"),
        ('{"aggregate_id":', "not JSON"),
        (line("a", "c")[:-1], "not a JSON object"),
        (line("a", "c") + "x", "there is more text after the object"),
        (line("a", "c", data="§").replace('"\\u00a7"', "NaN"), "NaN is not JSON"),
        (line("a", "c").replace(":1}", ":01}"), "not a JSON object"),
        (line("a", "c").replace(":1}", ":}"), "not JSON"),
        (line("a", "c").replace(":1}", ":" + "[" * 100_000), "not JSON"),
        (line("a", "c").replace('"data":1', '"dta":1'), "'dta' is not one of"),
        (line("a", "c").replace(',"data":1', ""), "data is missing"),
        (line("a", "c").replace(',"data":1', ',"data":1,"data":2'), "data occurs twice"),
        (line("a", "c", data_base64="AA=="), "both data and data_base64"),
        (line("a", "c").replace('"data":1', '"data_base64":"?"'), "not base 64"),
        (line("a", "c").replace('"c"', "7", 1), "command_id is not a string"),
        (line("a", "c", timestamp=None), "timestamp is missing"),
        (line("a", "c", timestamp="2026-01-31T12:00:00"), "no time zone"),
        (line("a", "c", timestamp="yesterday"), "not ISO 8601"),
        (line("a", "c", timestamp=1.5), "timestamp is not a string"),
    ],
)
def test_a_line_that_is_not_an_event_is_refused_with_a_reason(text: str, words: str) -> None:
    with pytest.raises(LineRefused, match=words.replace("{", r"\{")):
        parse_line(text)


def test_the_ids_of_a_refused_line_are_read_if_possible() -> None:
    with pytest.raises(LineRefused) as refused:
        parse_line(line("order-1", "c-1")[:-5])
    assert refused.value.ids == ("order-1", "c-1")


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("{broken", (None, None)),
        (line("order-1", "c-1")[:30], ("order-1", None)),
        ('{"data":{"aggregate_id":"other","command_id":"c"},"aggregate_id":"order-1",', (None, None)),  # may be the payload's
        ('{"data":{"aggregate_id":"other"},"aggregate_id":"order-1","command_id":"c-1"}', ("order-1", "c-1")),  # is JSON
        (line("data", "c-1")[:-5], ("data", "c-1")),
        (line("order-\ufffd", "c-1")[:-5], (None, "c-1")),  # may be another order's
        ('{"payload":{"aggregate_id":"other","command_id":"c"},"aggregate_id":"order-1","command_id":"c-1"}', (None, None)),
        (line("order-1", "c-1")[:-5].replace('"command_id"', '"aggregate_id":"order-2","command_id"'), (None, None)),
        ('{"aggregate_id":"\\ud800","command_id":"c-1","event_type":"T","timestamp":0,"data":1}', (None, "c-1")),
        (line("order-1", "c-1", data={"aggregate_id": "x"}, timestamp="2026-01-01T00:00:00"), ("order-1", "c-1")),  # no zone
        ('{"aggregate_id":"order-1","command_id":"c-1","command_id":"c-2","data":1}', ("order-1", None)),  # one of the two
    ],
)
def test_only_ids_that_are_surely_those_of_a_refused_line_are_read(text: str, ids: tuple[str | None, str | None]) -> None:
    with pytest.raises(LineRefused) as refused:
        parse_line(text)
    assert refused.value.ids == ids


ONE, OTHER = line("order-1", "c-1", data={"text": "x"}), line("order-2", "c-1")


@pytest.mark.parametrize("cut", [*range(1, len(ONE) + 1), *range(-len(ONE) + 1, 0)])
def test_of_a_line_that_another_one_follows_no_id_is_sure(cut: int) -> None:
    part = ONE[:cut] if cut > 0 else ONE[cut:]
    with pytest.raises(LineRefused) as refused:
        parse_line(part + OTHER)
    assert refused.value.ids == (None, None)
    with pytest.raises(LineRefused) as refused:
        parse_line(ONE + part)
    assert refused.value.ids == (None, None)


def test_a_payload_that_quotes_an_aggregate_id_does_not_make_that_of_its_line_unsure() -> None:
    with pytest.raises(LineRefused) as refused:
        parse_line(line("order-1", "c-1", data='its "aggregate_id": "x"', timestamp=None)[:-5])
    assert refused.value.ids == ("order-1", "c-1")


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": "), (" , ", " : ")])
@pytest.mark.parametrize("more", [{"version": 3}, {"version": 3, "sequence": 9, "shard": 1}, {"version": 3, "metadata": {}}])
def test_the_version_of_a_line_is_found_however_it_is_spelled(separators: tuple[str, str], more: dict[str, object]) -> None:
    text = json.dumps(json.loads(line("a", "c", **more)), separators=separators)
    assert parse_line(text).version == 3


@given(
    st.one_of(
        st.tuples(st.just(0), st.binary(max_size=20)),
        st.tuples(st.just(DATA_IS_JSON), JSON_TEXTS.map(str.encode)),
        st.tuples(st.just(DATA_IS_JSON), st.binary(max_size=20)),
    ),
    st.one_of(
        st.just((0, None)),
        st.tuples(st.just(0), st.binary(max_size=20)),
        st.tuples(st.just(METADATA_IS_JSON), JSON_TEXTS.map(str.encode)),
        st.tuples(st.just(METADATA_IS_JSON), st.text(max_size=20).map(str.encode)),
    ),
    st.sets(NAMES.filter(str.isprintable), max_size=3).map(checked_tags),
    NAMES,
    st.integers(-(2**63), 2**63 - 1),
)
def test_every_event_is_read_back_from_its_line(
    data: tuple[int, bytes], metadata: tuple[int, bytes | None], tags: tuple[str, ...], event_type: str, time: int
) -> None:
    new = tuple.__new__(NewEvent, (data[0] | metadata[0], event_type, data[1], metadata[1]))
    stored = _event(with_tags(new, tags), time)
    text = format_event(stored)
    assert "\n" not in text
    aggregate_id, command_id, read_time, event, version, *_ = parse_line(text)
    assert (aggregate_id, command_id, read_time, version) == ("a", "c", time, 3)
    assert (event.type, event.data, event.metadata) == (stored.type, stored.data, stored.metadata)
    assert event.tags == stored.tags == tags
    is_text = True
    try:
        stored.data.decode()
    except UnicodeDecodeError:
        is_text = False
    assert event[0] == stored[8] if is_text else not event[0] & DATA_IS_JSON
    assert json.loads(text)["version"] == 3


def test_an_exported_line_is_one_line_for_every_reader() -> None:
    text = format_event(_event(NewEvent("T", {"separators": "\u2028\u2029\x85"}), 0))
    assert len(text.splitlines()) == 1
    assert parse_line(text)[3] == NewEvent("T", {"separators": "\u2028\u2029\x85"})


def test_a_line_names_the_shard_of_its_sequence_if_there_are_several_and_an_import_ignores_it() -> None:
    event = _event(NewEvent("T", {"n": 1}), 0)
    assert "shard" not in json.loads(format_event(event))
    text = format_event(event, 0)
    assert json.loads(text) == {**json.loads(format_event(event)), "shard": 0}
    assert parse_line(text) == parse_line(format_event(event))
