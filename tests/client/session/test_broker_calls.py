"""Refusals of broker calls name the argument as the caller wrote it, not as the wire has it, before anything is sent."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from eventstore.broker.retry_policy import RetryPolicy
from eventstore.client.session.broker_calls import dead_letters_request, pull_request, set_retries_request
from eventstore.errors import InvalidArgument
from eventstore.protocol.group_requests import ReplayDead, SetRetries
from eventstore.records.consumer_groups import Retries
from eventstore.records.message import encode_properties

WANT = ("orders", 0, 0, None)


@pytest.mark.parametrize(
    ("make", "field", "told"),
    [
        (lambda: pull_request([WANT], 0, None, 0.0), "limit", "limit is 0, allowed are 1 to 10000"),
        (lambda: pull_request([WANT], 10_001, None, 0.0), "limit", "limit is 10001, allowed are 1 to 10000"),
        (lambda: pull_request([WANT], 1, 2**23 + 1, 0.0), "size_bytes", "size_bytes is 8388609, allowed are 1 to 8388608"),
        (lambda: pull_request([WANT], 1, None, "soon"), "wait", "wait must be a number, not 'soon'"),
        (lambda: pull_request([WANT], 1, None, float("nan")), "wait", "wait must be a number, not nan"),
        (lambda: pull_request([WANT[:3]], 1, None, 0.0), "wants", "each takes topic, queue, offset, and tags or None"),
        (lambda: dead_letters_request("billing", 0, 10_001), "limit", "limit is 10001, allowed are 1 to 10000"),
        (lambda: dead_letters_request("billing", -1, 1), "offset", "offset is -1, allowed are 0 to"),
        (lambda: ReplayDead("billing", (-1,)), "offsets", "offsets is -1, allowed are 0 to"),
        (lambda: set_retries_request("g", Retries((1, -2))), "delays", "delays is -2, allowed are 0 to 86400"),
        (lambda: set_retries_request("g", Retries((1e9,))), "delays", "delays is 1e+09, allowed are 0 to 86400"),
        (lambda: set_retries_request("g", Retries(("1",))), "delays", "delays must be a number, not '1'"),
        (lambda: set_retries_request("g", Retries((1.0,) * 65)), "delays", "there are 65 delays, allowed are 0 to 64"),
        (lambda: set_retries_request("g", Retries((1.0,), 1_001)), "attempts", "attempts is 1001, allowed are 1 to 1000"),
        (lambda: RetryPolicy((1.0,), 2, "a b"), "dead_letters", "dead_letters is 'a b'; allowed are 1 to 127"),
        (lambda: encode_properties({"x": 1}), "properties", "property x must be text, not 1"),
        (lambda: encode_properties({"": "1"}), "properties", "the name of a property has 0 bytes, allowed are 1 to 255"),
        (lambda: encode_properties({":x": "1"}), "properties", "names that begin with a colon are the broker's"),
    ],
)
def test_a_refused_argument_is_named_as_its_caller_knows_it(make: Callable[[], object], field: str, told: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        make()
    assert (refused.value.fields["field"], told in str(refused.value)) == (field, True), str(refused.value)


def test_what_is_within_its_limits_is_sent_as_it_is() -> None:
    request = pull_request([WANT], 10_000, 2**23, 61.0)
    assert (request.messages_max, request.bytes_max, request.wait_ms, request.wants) == (10_000, 2**23, 60_000, (WANT,))
    assert set_retries_request("g", Retries((0, 0.5, 86_400), 4, "failed")) == SetRetries(
        "g", 4, "failed", (0, 500, 86_400_000)
    )
