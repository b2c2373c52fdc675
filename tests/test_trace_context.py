"""What a trace puts into the metadata of events comes off byte for byte, and tells no two commands apart."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

import eventstore as es
from eventstore import flat
from eventstore.trace_context import with_trace, without_trace
from eventstore.tracing.carrying import event_with

ids = st.text("0123456789abcdef", min_size=16, max_size=16)
contexts = st.builds(
    lambda one, two, three, state: {"traceparent": f"00-{one}{two}-{three}-01", **({"tracestate": state} if state else {})},
    ids,
    ids,
    ids,
    st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=300),
)
json_values = st.recursive(
    st.none() | st.integers() | st.text(max_size=8), lambda inner: st.dictionaries(st.text(max_size=4), inner)
)
metadata = st.none() | st.binary(max_size=40) | st.dictionaries(st.text(max_size=12), json_values, max_size=4)
events = st.builds(
    es.NewEvent,
    st.text("ABC", min_size=1, max_size=3),
    st.binary(max_size=20) | json_values,
    metadata,
    st.lists(st.text("abc", min_size=1, max_size=3), max_size=2),
)


@given(st.lists(events, min_size=1, max_size=5), contexts)
def test_the_events_without_their_context_are_the_events_as_they_were_given(
    given: list[es.NewEvent], context: dict[str, str]
) -> None:
    before = flat.encode([value for event in given for value in event])
    traced = [event_with(event, context) for event in given]
    after = flat.encode([value for event in traced for value in event])
    assert without_trace(after) == before
    assert without_trace(before) == before


@given(events, contexts)
def test_an_event_with_a_context_has_the_same_content(given: es.NewEvent, context: dict[str, str]) -> None:
    traced = event_with(given, context)
    assert (traced.type, traced.data, traced.tags) == (given.type, given.data, given.tags)
    if traced is not given:
        found = json.loads(traced.metadata or b"")
        assert found.pop("traceparent") == context["traceparent"]
        found.pop("tracestate", None)
        assert found == json.loads(given.metadata or b"{}")


def test_metadata_that_have_a_context_or_are_no_object_stay_as_they_are() -> None:
    context = {"traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}
    for stored in (b"[1]", b"text", b'{"a":1,"traceparent":"mine"}'):
        assert with_trace(stored, context) == stored
