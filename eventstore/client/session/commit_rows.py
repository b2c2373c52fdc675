"""Commits in batches (see `batches`): their rows, frames and outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from eventstore.errors import EventStoreError
from eventstore.flat import Scalar
from eventstore.model import Committed
from eventstore.protocol.answers import OUTCOME_VALUES, decode_all_committed, decode_outcome
from eventstore.protocol.codes import OutcomeKind
from eventstore.protocol.request_codec import encode_append
from eventstore.protocol.requests import FoundCommand, FoundDurable
from eventstore.records.raw_commit import RawCommit, condition_text

_ENVELOPE_BYTES: Final = 40  # the marks and lengths of the five values, an expected version and a timestamp at most


class CommitRows:
    """The `RowKind` of commits."""

    name = "commits"
    refused = int(OutcomeKind.REFUSED)

    def size_bytes(self, row: RawCommit) -> int:
        return len(row[4]) + 4 * (len(row[0]) + len(row[2])) + _ENVELOPE_BYTES

    def encode(self, request_id: int, rows: Sequence[RawCommit]) -> bytes:
        return encode_append(request_id, rows)

    def outcomes(
        self, rows: Sequence[RawCommit], values: Sequence[Scalar], durability: int | None
    ) -> list[Committed | EventStoreError]:
        if len(rows) == 1:
            row, (kind, first, second) = rows[0], values
            return [decode_outcome(row[0], condition_text(row[1]), kind, first, second, durability)]
        committed = decode_all_committed([row[0] for row in rows], values, durability)
        if committed is not None:
            return committed
        triples = zip(*(values[place::OUTCOME_VALUES] for place in range(OUTCOME_VALUES)), strict=True)
        return [
            decode_outcome(row[0], condition_text(row[1]), kind, first, second, durability)
            for row, (kind, first, second) in zip(rows, triples, strict=True)
        ]


COMMITS: Final = CommitRows()


def committed_of(aggregate_id: str, found: FoundCommand | FoundDurable | None) -> Committed | None:
    """Returns what a command was committed as."""
    if found is None:
        return None
    durability = found.durability if isinstance(found, FoundDurable) else None
    return Committed(aggregate_id, found.version, found.sequence, duplicate=True, durability=durability)
