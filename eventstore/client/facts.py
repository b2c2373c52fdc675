"""What the answers to the small questions say: a version, a command's outcome, the server's numbers."""

from __future__ import annotations

from eventstore.errors import ProtocolError
from eventstore.flat import Scalar
from eventstore.model import Committed
from eventstore.protocol.answers import Ok


def read_version(answer: Ok) -> int:
    """The answer to VERSION.

    Raises:
        ProtocolError: it is none.
    """
    if len(answer.values) != 1 or not isinstance(answer.values[0], int):
        raise ProtocolError(f"VERSION was answered by {answer.values!r:.100}, not by one integer")
    return answer.values[0]


def found_command(aggregate_id: str, answer: Ok) -> Committed | None:
    """The answer to FIND_COMMAND.

    Raises:
        ProtocolError: it is none.
    """
    match answer.values:
        case ():
            return None
        case (int(version), int(sequence)):
            return Committed(aggregate_id, version, sequence, duplicate=True)
        case other:
            raise ProtocolError(f"FIND_COMMAND was answered by {other!r:.100}, not by version and sequence or nothing")


def read_stats(answer: Ok) -> dict[str, Scalar]:
    """The answer to STATS.

    Raises:
        ProtocolError: it is none.
    """
    names, values = answer.values[0::2], answer.values[1::2]
    if len(names) != len(values):
        raise ProtocolError(f"STATS was answered by {len(answer.values)} values, not by pairs")
    return {str(name): value for name, value in zip(names, values, strict=True)}
