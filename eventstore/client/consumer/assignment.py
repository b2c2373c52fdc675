"""The assignment of queues to a member: decoded from the answers to JOIN and HEARTBEAT, held against the windows it has."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from eventstore.client.consumer.commit_window import Window
from eventstore.errors import ProtocolError
from eventstore.flat import Scalar
from eventstore.records.consumer_groups import AssignedQueue

_ASSIGNMENT_VALUES: Final = 6
_log: Final = logging.getLogger(__name__)


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


def say_what_went_back(group: str, windows: Mapping[tuple[str, int], Window], queues: Sequence[AssignedQueue]) -> None:
    """Says in the log where the group is before what this member has committed: it hands messages out that it had before."""
    held = ((windows.get((each.topic, each.queue)), each) for each in queues)
    back = [(window, each.offset) for window, each in held if window and not window.closed and window.committed > each.offset]
    if back:
        window, offset = back[0]
        _log.warning(
            "the offset of group %s in queue %d of %s went back from %d to %d%s: the broker crashed before it had saved the "
            "commits of its last second, the group was reset, the topic created again, or the broker restored from an older "
            "copy; messages are delivered again from there",
            group,
            window.queue,
            window.topic,
            window.committed,
            offset,
            f", and those of {len(back) - 1} other queues" if len(back) > 1 else "",
        )
