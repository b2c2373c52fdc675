"""docs/PROTOCOL.md and the code say the same: every example, every code, every limit."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from eventstore import errors, flat, model
from eventstore.errors import EventStoreError, InvalidArgument, UnknownOperation, VersionConflict
from eventstore.model import Committed, NewEvent
from eventstore.protocol import limits
from eventstore.protocol.answers import (
    encode_error,
    encode_goodbye,
    encode_ok,
    encode_outcomes,
    encode_page,
    encode_scan_page,
    outcome_values,
)
from eventstore.protocol.codes import AnswerCode, RequestCode
from eventstore.protocol.handshake import Welcome
from eventstore.protocol.request_codec import encode_request
from eventstore.protocol.requests import (
    Append,
    Credit,
    FindCommand,
    Hello,
    Ping,
    Read,
    ReadAll,
    Send,
    Stats,
    Subscribe,
    Unsubscribe,
    Version,
)
from tests.protocol.records import make_record

TEXT = (Path(__file__).parents[2] / "docs" / "PROTOCOL.md").read_text(encoding="utf-8")
EVENT = NewEvent("OrderPlaced", {"total": 12})
RECORD = make_record("order-42", "c-1", [EVENT])
MIXED = (
    Committed("order-42", 1, 1, duplicate=True),
    VersionConflict("order-42", 1, 5),
    InvalidArgument("too long", field="type", limit=255),
)
EXAMPLES = {
    "hello": encode_request(1, Hello(1, "demo")),
    "hello-answer": encode_ok(1, *Welcome(1, "es", bytes(range(16))).values()),
    "append": encode_request(2, Append([("order-42", 0, "c-1", None, flat.encode(EVENT))])),
    "outcomes": encode_outcomes(2, outcome_values(Committed("order-42", 1, 1))),
    "outcomes-mixed": encode_outcomes(3, [value for outcome in MIXED for value in outcome_values(outcome)]),
    "read": encode_request(4, Read("order-42")),
    "record": RECORD,
    "page": encode_page(4, None, RECORD),
    "read-all": encode_request(5, ReadAll(0, 100, 524_288, "order-", None, None, ("OrderPlaced",))),
    "scan-page": encode_scan_page(5, 1, True, b""),
    "version": encode_request(6, Version("order-42")),
    "version-answer": encode_ok(6, 1),
    "find-command": encode_request(7, FindCommand("order-42", "c-1")),
    "find-command-answer": encode_ok(7, 1, 1),
    "subscribe": encode_request(8, Subscribe(1, 1_048_576)),
    "credit": encode_request(0, Credit(8, 524_288)),
    "unsubscribe": encode_request(9, Unsubscribe(8)),
    "stats": encode_request(10, Stats()),
    "stats-answer": encode_ok(10, "events", 1),
    "ping": encode_request(11, Ping()),
    "send": encode_request(13, Send([("Deposit", "acc-1", "c-9", b'{"cents":100}')])),
    "error": encode_error(12, UnknownOperation("unknown", operation=99)),
    "goodbye": encode_goodbye(),
}


def documented_examples() -> dict[str, bytes]:
    blocks = re.findall(r"^```hex (\S+)\n(.*?)^```", TEXT, flags=re.M | re.S)
    return {name: bytes.fromhex("".join(line.split("  ")[0] for line in block.splitlines())) for name, block in blocks}


def documented_codes(heading: str) -> dict[int, str]:
    table = TEXT.split(heading)[1].split("\n\n")[0]
    return {int(code): name for code, name in re.findall(r"^\| (\d+) \| (\w+) \|", table, flags=re.M)}


def test_every_example_is_known() -> None:
    assert documented_examples().keys() == EXAMPLES.keys()


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_what_the_code_sends(name: str) -> None:
    assert documented_examples()[name].hex(" ") == EXAMPLES[name].hex(" ")


def test_every_request_and_answer_code_is_documented() -> None:
    assert documented_codes("| code | request |") == {code.value: code.name for code in RequestCode}
    assert documented_codes("| code | answer |") == {code.value: code.name for code in AnswerCode}


def test_every_error_code_is_documented() -> None:
    classes = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, EventStoreError)]
    known = {cls.code: cls.__name__ for cls in classes}
    assert documented_codes("| code | error |") == known


@pytest.mark.parametrize(
    "limit",
    [
        limits.FRAME_BYTES_MAX,
        limits.VALUES_PER_FRAME_MAX,
        limits.COMMITS_PER_FRAME_MAX,
        limits.PAGE_BYTES_MAX,
        limits.TYPES_MAX,
        limits.CREDIT_BYTES_MAX,
        limits.NAME_BYTES_MAX,
        model.COMMIT_EVENTS_MAX,
        model.COMMIT_BYTES_MAX,
        model.EVENT_BYTES_MAX,
        model.ID_BYTES_MAX,
        model.TYPE_BYTES_MAX,
    ],
)
def test_every_limit_is_documented(limit: int) -> None:
    table = TEXT.split("## Limits")[1].split("\n## ")[0]
    assert re.search(rf"(?<![\d,]){limit:,}(?![\d,])", table)
