"""Commands as a server keeps them in a topic, to be replayed with other code: `eventstore replay`.

A kept command says what was sent and what became of it. Its personal fields are left out; so are its metadata.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

from eventstore.domain.encoding.command_type import CommandType
from eventstore.errors import HandlerFailed, InvalidArgument, Rejected

KeptOutcome: TypeAlias = Literal["committed", "unchanged", "rejected", "failed"]


class KeptCommand(NamedTuple):
    """`payload`: its fields, without those of `left_out`. `reason`: of a rejection; of a failure, the name of the error.
    `sequence`: of the last event that it stored, or of the last one in the store when it was answered.
    """

    type: str
    aggregate_id: str
    command_id: str
    payload: dict[str, Any]
    outcome: KeptOutcome
    reason: str | None
    sequence: int
    left_out: tuple[str, ...] = ()

    def encode(self) -> bytes:
        """Returns the body of its message, a JSON object."""
        return json.dumps(self._asdict(), ensure_ascii=False, separators=(",", ":")).encode()


def fields_kept(kind: CommandType[Any], command: object) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Returns the fields of a command that are kept, as JSON values, and the names of those that are not."""
    fields: dict[str, Any] = json.loads(kind.codec.encode(command))
    left_out = tuple(name for name in kind.personal if name in fields)
    return {name: value for name, value in fields.items() if name not in left_out}, left_out


def refusal_of(error: BaseException) -> tuple[KeptOutcome, str]:
    """Returns what became of a command whose handler raised this: the outcome, and why in a word."""
    if isinstance(error, Rejected):
        reason = error.fields.get("reason")
        return "rejected", type(error).__name__ if reason is None else str(reason)
    raised = error.fields.get("error") if isinstance(error, HandlerFailed) else None
    return "failed", type(error).__name__ if raised is None else str(raised)


def decode_kept(body: bytes) -> KeptCommand:
    """Returns the command of a message. Raises InvalidArgument: it is another message."""
    try:
        found = json.loads(body)
        if not isinstance(found, Mapping):
            raise TypeError("it is no JSON object")
        kept = KeptCommand(**{**found, "left_out": tuple(found["left_out"])})
        texts = kept.type, kept.aggregate_id, kept.command_id, kept.outcome
        if not all(isinstance(each, str) for each in texts) or not isinstance(kept.payload, dict):
            raise TypeError("a field has another type")
        if type(kept.sequence) is not int:
            raise TypeError("its sequence is no number")
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidArgument(
            f"a message is no kept command ({error}); name the topic of keep_commands, which nothing else is sent to",
            field="commands",
        ) from None
    return kept
