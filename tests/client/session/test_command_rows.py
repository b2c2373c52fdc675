"""Commands as rows of a batch: their four values, their limits, their outcomes."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

import eventstore as es
import eventstore.domain as d
from eventstore.client.session.batches import BATCH_BYTES, BATCH_ROWS, BatchQueue, slices
from eventstore.client.session.calls import PolledSignal
from eventstore.client.session.command_rows import COMMANDS, encode_command, encode_commands
from eventstore.model import ID_BYTES_MAX, Unchanged
from eventstore.protocol import RequestDecoder, outcome_values
from eventstore.protocol.answers import Outcomes
from eventstore.protocol.frames import LENGTH_BYTES
from eventstore.protocol.limits import PAYLOAD_BYTES_MAX
from eventstore.protocol.requests import Send, WireCommand


@dataclass(frozen=True)
class Paint:
    wall: str
    colour: str = "white"


def test_a_command_is_its_type_its_aggregate_an_id_and_its_fields() -> None:
    assert encode_command(Paint("w-1"), "c-1") == ("Paint", "w-1", "c-1", b'{"wall":"w-1","colour":"white"}', None)
    raw = d.RawCommand("Paint", "w-1", b"anything")
    assert encode_command(raw, "c-1") == ("Paint", "w-1", "c-1", b"anything", None)


def test_a_command_without_an_id_gets_a_fresh_one() -> None:
    ids = {encode_command(Paint("w-1"), None)[2] for _ in range(100)}
    assert len(ids) == 100
    assert all(0 < len(each) <= ID_BYTES_MAX for each in ids)


@pytest.mark.parametrize(
    ("command", "command_id", "field"),
    [
        (Paint("w"), "", "command_id"),
        (Paint("w"), "x" * (ID_BYTES_MAX + 1), "command_id"),
        (Paint("w"), "é" * 128, "command_id"),
        (Paint(""), "c-1", "aggregate_id"),
        (Paint("x" * (ID_BYTES_MAX + 1)), "c-1", "aggregate_id"),
        (Paint("w", "x" * PAYLOAD_BYTES_MAX), "c-1", "payload"),
        (d.RawCommand("", "w", b""), "c-1", "type"),
    ],
)
def test_what_breaks_a_limit_is_refused_by_name(command: object, command_id: str, field: str) -> None:
    with pytest.raises(es.InvalidArgument) as caught:
        encode_command(command, command_id)
    assert caught.value.fields["field"] == field


def test_an_invalid_command_fails_alone() -> None:
    encoded = encode_commands([Paint("w-1"), (Paint("w-2"), "c-2"), object(), (Paint("w-3"), ""), Paint("")])
    assert [each[1] if isinstance(each, tuple) else type(each) for each in encoded] == [
        "w-1", "w-2", es.DomainRefused, es.InvalidArgument, es.InvalidArgument,
    ]  # fmt: skip


def rows(count: int, size: int = 10) -> list[WireCommand]:
    return [encode_command(Paint(f"w-{number}", "x" * size), f"c-{number}") for number in range(count)]


def test_the_size_of_a_row_is_never_less_than_it_takes() -> None:
    for row in (*rows(3, 0), *rows(3, 70_000), encode_command(Paint("ü" * 100), "ü" * 100, {"user": "ü" * 5_000})):
        assert len(COMMANDS.encode(2**63, [row])) <= COMMANDS.size_bytes(row) + LENGTH_BYTES + 20


@pytest.mark.parametrize(
    ("count", "size"), [(1, 0), (BATCH_ROWS, 0), (3 * BATCH_ROWS + 1, 0), (40, BATCH_BYTES // 10), (3, BATCH_BYTES)]
)
def test_commands_of_one_call_keep_their_order_over_as_many_frames_as_they_need(count: int, size: int) -> None:
    given, decode, sent = rows(count, size), RequestDecoder().decode, list[WireCommand]()
    for number, (part, size_bytes) in enumerate(slices(COMMANDS, given), 1):
        assert len(part) <= BATCH_ROWS
        assert len(part) == 1 or size_bytes <= BATCH_BYTES
        request_id, request = decode(COMMANDS.encode(number, part)[LENGTH_BYTES:])
        assert isinstance(request, Send)
        assert request_id == number
        sent += request.commands
    assert sent == given


def test_each_command_of_a_batch_has_its_outcome() -> None:
    queue = BatchQueue(COMMANDS, PolledSignal)
    first = queue.add_rows(rows(3), 100)
    second = queue.add_rows(rows(2), 100)
    batch = queue.next()
    assert batch is first.batch is second.batch
    queue.left(batch)
    rejected = es.Rejected("no", reason="colour")
    told = [
        es.Committed("w-0", 1, 7),
        None,
        rejected,
        es.Committed("w-0", 1, 7, duplicate=True),
        es.VersionConflict("w-1", 3, 5),
    ]
    values = [value for each in told for value in ((4, 0, 0) if each is None else outcome_values(each))]
    assert batch.receive(Outcomes(values, 1), 100)
    assert first.outcomes()[:2] == [es.Committed("w-0", 1, 7), Unchanged("w-1")]
    refused = first.outcomes()[2]
    assert isinstance(refused, es.Rejected)
    assert (refused.message, refused.fields) == ("no", {"reason": "colour"})
    again, conflict = second.outcomes()
    assert again == es.Committed("w-0", 1, 7, duplicate=True)
    assert isinstance(conflict, es.VersionConflict)
    assert conflict.fields["actual"] == 5


def test_an_answer_with_too_few_outcomes_fails_every_command_of_the_frame() -> None:
    queue = BatchQueue(COMMANDS, PolledSignal)
    added = queue.add_rows(rows(2), 100)
    assert queue.next() is added.batch
    queue.left(added.batch)
    added.batch.receive(Outcomes((4, 0, 0)), 100)
    assert [type(each) for each in added.outcomes()] == [es.ProtocolError] * 2
