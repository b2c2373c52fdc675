"""The assignment of queues to a member, held against the windows it has."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from eventstore.client.consumer.commit_window import Window
from eventstore.records.consumer_groups import AssignedQueue

_log: Final = logging.getLogger(__name__)


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
