"""The assignment of queues to a member: decoded from the answers to JOIN and HEARTBEAT, held against the windows it has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from eventstore.client.consumer.commit_window import Window
from eventstore.errors import ProtocolError
from eventstore.flat import Scalar
from eventstore.records.consumer_groups import AssignedQueue

_ASSIGNMENT_VALUES: Final = 6


def decode_assignment(values: Sequence[Scalar]) -> tuple[int, list[AssignedQueue]]:
    """Returns generation and assigned queues, from the answer to JOIN or HEARTBEAT.

    Raises:
        ProtocolError: the answer has another form.
    """
    generation, rest = values[0] if values else None, values[1:]
    assigned = []
    for at in range(0, len(rest), _ASSIGNMENT_VALUES):
        match rest[at : at + _ASSIGNMENT_VALUES]:
            case (str(topic), int(queue), int(offset), str() | None as tags, int(suspects_end), int() | None as killer):
                assigned.append(AssignedQueue(topic, queue, offset, tags, suspects_end, killer))
    if not isinstance(generation, int) or _ASSIGNMENT_VALUES * len(assigned) != len(rest):
        raise ProtocolError(f"an assignment is a generation and rows of {_ASSIGNMENT_VALUES} values, not {values!r:.100}")
    return generation, assigned


def continues(window: Window, assigned: AssignedQueue) -> bool:
    """Whether the window still fits the server's offset: the group's offset was not moved by anyone else.

    The offset of a commit whose answer was lost lies between the two as well.
    """
    same = not window.closed and window.tags == assigned.tags
    return same and window.committed <= assigned.offset <= window.position
