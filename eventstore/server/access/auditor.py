"""Writes the audit trail into the store. What is to be carried out only once it is recorded waits for that."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import trio

from eventstore.errors import CommandIdReused, EventStoreError, Overloaded
from eventstore.model import DATA_IS_JSON, NewEvent
from eventstore.security.access_changes import author, changes
from eventstore.security.access_list import AccessList
from eventstore.security.audit import AUDIT, AUDITED, FIRST, AuditRecord, access_in, digest

if TYPE_CHECKING:  # a node, which has none, is to be small
    from eventstore.store.embedded import EmbeddedStore

_WAITING_MAX: Final = 1_000
_REFUSED_A_MINUTE: Final = 60  # logins; more are counted: a caller that tries many must not fill the disk
_AGAIN_S: Final = 1.0
_CHANGED: Final = "ACCESS_CHANGED"
_UNSEEN: Final = "another list than at the record before: changed while the server was stopped, or that of another node"
_log = logging.getLogger(__name__)

Recorded = Callable[[EventStoreError | None], None]
"""Called when a record is durable, or with why it is not."""


class Auditor:
    """`records` counts those that were written, `uncounted` logins that were refused and have no record of their own.

    Each record has the digest of the access list whose changes are all recorded: at the start the last one tells whether there
    were others.
    """

    def __init__(self, store: EmbeddedStore, access: AccessList) -> None:
        self._store = store
        self._access = access.digest
        self._waiting: deque[tuple[AuditRecord, int, str, Recorded | None]] = deque()
        self._news = trio.Event()
        self._minute, self._refused = 0, 0
        self.records = self.uncounted = 0

    def note(self, record: AuditRecord, recorded: Recorded | None = None) -> None:
        """Has a record written. Raises Overloaded if a request waits for it: too many wait for the disk."""
        if recorded is not None and len(self._waiting) >= _WAITING_MAX:
            raise Overloaded(f"{_WAITING_MAX} records of the audit trail wait for the disk, the limit", limit=_WAITING_MAX)
        self._waiting.append((record, time.time_ns() // 1_000, self._access, recorded))
        self._news.set()

    def note_changes(self, before: AccessList, access: AccessList) -> None:
        """Records what was changed between two lists."""
        who = author(before, access)
        records = [AuditRecord(_CHANGED, who, "", {"name": name, "change": how}) for name, how in changes(before, access)]
        for record in records[:-1]:
            self.note(record)
        self._access = access.digest
        for record in records[-1:]:
            self.note(record)

    def note_refused_login(self, origin: str, why: str) -> None:
        """Records a login that was refused; above `_REFUSED_A_MINUTE` the next record counts them."""
        minute = int(time.monotonic() // 60)
        if minute != self._minute:
            self._minute, self._refused = minute, 0
        self._refused += 1
        if self._refused > _REFUSED_A_MINUTE or len(self._waiting) >= _WAITING_MAX:
            self.uncounted += 1
            return
        more, self.uncounted = self.uncounted, 0
        self.note(AuditRecord("LOGIN_REFUSED", "", origin, {"why": why, **({"others": more} if more else {})}))

    @property
    def waiting(self) -> int:
        """How many records are not written yet."""
        return len(self._waiting)

    async def run(self) -> None:
        """Writes records, one after the other, until cancelled."""
        previous: str | None = await self._note_unseen_change()
        while True:
            await self._news.wait()
            self._news = trio.Event()
            while self._waiting:
                record, time_us, access, recorded = self._waiting[0]
                try:
                    if previous is None:
                        previous = _hash(await self._last())
                    data = record.encode(previous, time_us, access)
                    with suppress(CommandIdReused):  # it is recorded, further up in the chain
                        event = tuple.__new__(NewEvent, (DATA_IS_JSON, AUDITED, data, None))  # the bytes as they are
                        await self._store.append_reserved(AUDIT, event, record.id or None)
                        previous = digest(data)
                        self.records += 1
                except EventStoreError as error:
                    previous = None  # it may have been stored
                    if recorded is None:
                        await self._pause(error)
                        continue
                    self._waiting.popleft()
                    recorded(error)
                else:
                    self._waiting.popleft()
                    if recorded is not None:
                        recorded(None)

    async def _note_unseen_change(self) -> str:
        """Has a record written, before all others, if access was changed while nothing could say so. Returns the hash of the
        last record that is stored.
        """
        access = self._access
        while True:
            try:
                last = await self._last()
            except EventStoreError as error:
                self._refuse_those_who_wait(error)
                await self._pause(error)
            else:
                break
        known = "" if last is None else access_in(last)
        if known and known != access:
            self._waiting.appendleft(
                (AuditRecord(_CHANGED, "", "", {"change": _UNSEEN}), time.time_ns() // 1_000, access, None)
            )
            self._news.set()
        return _hash(last)

    def _refuse_those_who_wait(self, error: EventStoreError) -> None:
        waiting, self._waiting = self._waiting, deque(each for each in self._waiting if each[3] is None)
        for *_, recorded in waiting:
            if recorded is not None:
                recorded(error)

    async def _pause(self, error: EventStoreError) -> None:
        _log.error("the audit trail cannot be written, and is tried again: %s", error.message)
        await trio.sleep(_AGAIN_S)

    async def _last(self) -> bytes | None:
        """Returns the last record that is stored."""
        async for each in self._store.read(AUDIT, backwards=True, limit=1):
            return each.data
        return None


def _hash(last: bytes | None) -> str:
    """Returns what the record after this one, the last, has of it."""
    return FIRST if last is None else digest(last)
