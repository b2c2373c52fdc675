"""The alarms of a server or node: evaluates the rules once a second on a thread, and has changes delivered.

Alarms are beside the way of data: they read the figures that `stats` shows, and if that takes long they look less often. Raised
alarms are kept in memory: after a restart, an alarm whose rule still holds is reported again, unless it is silenced. Silences
are kept in a file.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

import trio

from eventstore.alarms.alarm import Alarm
from eventstore.alarms.built_in_rules import BUILT_IN
from eventstore.alarms.delivery import NoticeDelivery
from eventstore.alarms.figure import Figure, ReadFigures
from eventstore.alarms.mail import Mail
from eventstore.alarms.notice import CHANGES_MAX, Notice
from eventstore.alarms.rule import parse_rules
from eventstore.alarms.silences import KeptSilences
from eventstore.alarms.watch import AlarmWatch, Silence
from eventstore.alarms.webhook import Webhook
from eventstore.errors import InvalidArgument
from eventstore.settings.alarms import AlarmSettings
from eventstore.timing.shared_ticks import sleep_to_tick

_SHARE_MAX: Final = 0.02
"""Of a core, for evaluating."""
_log = logging.getLogger(__name__)


class Alarms:
    """All alarms of a process. Made before anything is opened, so that a wrong rule or a wrong way of delivery is reported
    then.

    Attributes:
        source: names the server or node in notices.
        seen_by: what `attention` adds: how to see more.
    """

    def __init__(self, settings: AlarmSettings, known: Mapping[str, Collection[str]] | None = None) -> None:
        """`known`: the names of all figures that there may be; None: any.

        Raises:
            InvalidArgument: a rule or a setting of alarms is wrong; names it.
        """
        self.watch = AlarmWatch(parse_rules(settings.rules or "", BUILT_IN, known), settings.quiet_s)
        self._interval_s = settings.interval_s
        self.deliveries: list[NoticeDelivery] = []
        if settings.mail_server is not None:
            self.deliveries.append(NoticeDelivery(Mail(settings)))
        elif settings.mail_to is not None:
            raise InvalidArgument("alarm_mail_to is set, and alarm_mail_server is not", field="alarm_mail_server")
        if settings.webhook is not None or settings.webhook_file is not None:
            self.deliveries.append(NoticeDelivery(Webhook(settings)))
        self.source = socket.gethostname()
        self.seen_by = "; eventstore alarms list"
        self.evaluations = 0
        self._kept: KeptSilences | None = None

    def keep_silences(self, path: Path) -> None:
        """Keeps what is silenced in this file, and takes up what is there: a silence outlives its process."""
        self._kept = KeptSilences(path)
        for name, silence in self._kept.read(time.monotonic(), time.time_ns() // 1_000).items():
            if name in self.watch.rules:
                self.watch.silence(name, silence)

    async def run(self, read: ReadFigures) -> None:
        """Evaluates until cancelled. `read` is called on a thread."""
        try:
            await self._run(read)
        finally:
            if self._kept is not None:
                self._kept.write()

    async def _run(self, read: ReadFigures) -> None:
        async with trio.open_nursery() as nursery:
            for each in self.deliveries:
                nursery.start_soon(each.run)
            if self._kept is not None:
                nursery.start_soon(self._kept.run, self._interval_s)
            while True:
                began = time.monotonic()
                try:
                    figures = await trio.to_thread.run_sync(self._figures, read, abandon_on_cancel=True)
                except Exception:  # a figure that cannot be read is a bug, and stops no server
                    _log.exception("the alarms cannot be evaluated")
                else:
                    self.take(figures)
                took = time.monotonic() - began
                await sleep_to_tick(max(self._interval_s, took / _SHARE_MAX))

    def _figures(self, read: ReadFigures) -> list[Figure]:
        return list(read(self.watch.figures))

    def take(self, figures: list[Figure]) -> None:
        """Evaluates the rules on these figures, and sends what has changed."""
        now_us = time.time_ns() // 1_000
        changes = self.watch.take(figures, time.monotonic(), now_us)
        self.evaluations += 1
        for each in changes[:CHANGES_MAX]:
            _log.log(
                logging.WARNING if each.raised else logging.INFO, "alarm %s: %s", _word(each.raised), ascii(each.text)[1:-1]
            )
        if changes:
            self._send(Notice(self.source, now_us, changes[:CHANGES_MAX], max(0, len(changes) - CHANGES_MAX)))

    def _send(self, notice: Notice) -> None:
        for each in self.deliveries:
            each.put(notice)

    def test(self, who: str) -> list[str]:
        """Sends a test by every way of delivery; returns their names."""
        self._send(Notice(self.source, time.time_ns() // 1_000, (), test=who))
        return [each.way.name for each in self.deliveries]

    def silence(self, name: str, seconds: int, who: str, why: str) -> None:
        """Sends no notice of an alarm for so many seconds; 0: sends again at once. It is in the file as soon as the disk takes
        it; a silence that is lost before that lets the alarm be reported once more.

        Raises:
            InvalidArgument: there is no such alarm.
        """
        silence = Silence(time.monotonic() + seconds, time.time_ns() // 1_000 + seconds * 1_000_000, who, why)
        self.watch.silence(name, silence if seconds else None)
        by, because = ascii(who)[1:-1], ascii(why)[1:-1]
        if seconds:
            _log.warning("alarm %s is silenced for %d s by %s: %s", name, seconds, by, because)
        else:
            _log.warning("the silence of alarm %s is ended by %s: %s", name, by, because)
        if self._kept is not None:
            self._kept.note(self.watch.silences, time.monotonic())

    # ---- what is wrong

    @property
    def attention(self) -> str | None:
        """What an operator has to know, if anything: alarms that are raised and not silenced, or that do not arrive."""
        raised = self.watch.raised()
        if raised:
            return raised_text(raised) + self.seen_by
        parts = (*self.deliveries, *(() if self._kept is None else (self._kept,)))
        return next((each.attention for each in parts if each.attention is not None), None)

    @property
    def names_raised(self) -> str | None:
        """The names of the raised alarms, silenced or not."""
        return ", ".join(dict.fromkeys(each.rule.name for each in self.watch.raised(silenced=True))) or None


def raised_text(raised: list[Alarm]) -> str:
    more = f", and {len(raised) - 1} more" if len(raised) > 1 else ""
    return f"alarm {raised[0].text}{more}"


def _word(raised: bool) -> str:
    return "raised" if raised else "over"
