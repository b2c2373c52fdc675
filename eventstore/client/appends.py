"""Commits in batches (see `batches`): how they travel, and what their outcomes mean."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Final

from eventstore.errors import EventStoreError
from eventstore.flat import Scalar
from eventstore.model import Committed
from eventstore.protocol.answers import OUTCOME_VALUES, decode_all_committed, decode_outcome
from eventstore.protocol.codes import OutcomeKind
from eventstore.protocol.request_codec import encode_append
from eventstore.protocol.requests import WireCommit
from eventstore.store.raw_commit import named_expected

_ENVELOPE_BYTES: Final = 40  # the marks and lengths of the five values, an expected version and a timestamp at most


class Commits:
    """A `batches.Kind`."""

    name = "commits"
    refused = int(OutcomeKind.REFUSED)

    def size_bytes(self, row: WireCommit) -> int:
        return len(row[4]) + 4 * (len(row[0]) + len(row[2])) + _ENVELOPE_BYTES

    def encode(self, request_id: int, rows: Sequence[WireCommit]) -> bytes:
        return encode_append(request_id, list(chain.from_iterable(rows)))

    def outcomes(self, rows: Sequence[WireCommit], values: Sequence[Scalar]) -> list[Committed | EventStoreError]:
        committed = decode_all_committed([row[0] for row in rows], values)
        if committed is not None:
            return committed
        triples = zip(*(values[place::OUTCOME_VALUES] for place in range(OUTCOME_VALUES)), strict=True)
        return [
            decode_outcome(row[0], named_expected(row[1]), *triple)  # the values of one commit
            for row, triple in zip(rows, triples, strict=True)
        ]


COMMITS: Final = Commits()
