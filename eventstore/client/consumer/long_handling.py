"""Says in the log which messages have been in hand for long: a handler that never returns stops its queue without an error."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from eventstore.client.consumer.commit_window import Window
from eventstore.client.consumer.delivery_order import DeliveryOrder
from eventstore.client.consumer.member_options import MemberOptions

_LOOKS: Final = 8  # in the time after which something is said
_log: Final = logging.getLogger(__name__)


class _InHand(NamedTuple):
    """The first unfinished message of a window. `since`, `say_at`: on the clock of the caller."""

    offset: int
    since: float
    say_at: float


class LongHandling:
    """Watches the first unfinished message of each queue: said once after `warn_after_s`, then after twice, four times … that.

    It is watched from when it is seen to be in hand and the first: about when it was handed out, or the one before it was done.
    """

    def __init__(self, options: MemberOptions, ready: DeliveryOrder) -> None:
        self._options = options
        self._ready = ready
        self._seen: dict[Window, _InHand] = {}
        self._look_at = 0.0

    def look(self, windows: Sequence[Window], now: float, *, apart: bool) -> None:
        """Call it often. `apart`: a suspect is in hand or waits, so that all queues wait for what is in hand."""
        if now < self._look_at:
            return
        after = self._options.warn_after_s
        self._look_at = now + after / _LOOKS
        seen, due = dict[Window, _InHand](), list[Window]()
        for window in windows:
            if not window.messages or not self._is_in_hand(window, offset := window.position):
                continue
            known = self._seen.get(window)
            if known is None or known.offset != offset:
                known = _InHand(offset, now, now + after)
            elif now >= known.say_at:
                due.append(window)
                known = known._replace(say_at=known.since + 2 * (now - known.since))
            seen[window] = known
        self._seen = seen
        if due:
            self._say(min(due, key=lambda window: seen[window].since), len(due) - 1, now, apart)

    def _is_in_hand(self, window: Window, offset: int) -> bool:
        return not window.is_failing(offset) and self._ready.is_in_hand(window, offset)

    def _say(self, window: Window, others: int, now: float, apart: bool) -> None:
        offset, since, _ = self._seen[window]
        begun = datetime.fromtimestamp(datetime.now(UTC).timestamp() - (now - since), UTC)
        _log.warning(
            "message %d of queue %d of %s is in hand since %s, for %.0f s, at member %s of group %s%s: its handler has not "
            "returned, or neither done nor retry was called; %s it",
            offset,
            window.queue,
            window.topic,
            begun.isoformat(" ", "seconds"),
            now - since,
            self._options.member,
            self._options.group,
            f", and the first of {others} other queues too" if others else "",
            "all queues of this member wait for" if apart else "its group commits nothing of the queue after",
        )
