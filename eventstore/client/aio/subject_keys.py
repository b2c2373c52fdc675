"""The keys of subjects: what a client encrypts events by, and decrypts them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, cast

from eventstore.client.session.key_leases import KeyLeases
from eventstore.errors import InvalidArgument, PermissionDenied, ProtocolError, SubjectErased, UnknownOperation
from eventstore.model import NewEvent, PersonalEvent, UnsealedEvent
from eventstore.protocol.subject_requests import LeasedKeys
from eventstore.sealing import SubjectKey, can_seal, missing_extra, seal_events

_REFUSALS = (InvalidArgument, PermissionDenied, UnknownOperation)
"""What a server says that has no keys, or gives this client none."""


class NetworkKeys:
    """Keys that are leased from the server, or from the shards."""

    def __init__(self, ask: Callable[[tuple[str, ...], bool], Any]) -> None:
        """`ask`: makes a call that returns the `LeasedKeys` of subjects, or of some of them. Its second argument: those that
        have no key get one.
        """
        self._ask = ask
        self._leases = KeyLeases()

    async def open(self, events: Sequence[PersonalEvent]) -> None:
        """Decrypts the events, in them. Those that this client has no key of stay encrypted."""
        if not can_seal():
            return
        subjects = [event.subject or "" for event in events]
        while wanted := self._leases.wanting(subjects, time.monotonic()):
            try:
                await self._lease(wanted, create=False)
            except PermissionDenied:
                await self._lease_each(wanted)
            except _REFUSALS:
                self._leases.refused(wanted, time.monotonic())
        self._leases.open(events, subjects)
        self._leases.trim()

    async def sealed(self, events: Sequence[NewEvent], aggregate_id: str, command_id: str) -> list[NewEvent]:
        """Returns the events of a commit, those with a subject encrypted. The keys are durable where they are kept.

        Raises:
            SubjectErased: one of the subjects was erased.
            InvalidArgument: the server keeps no keys, or the extra `personal` is missing here.
            PermissionDenied: this client may not have the key.
        """
        keys = dict[str, SubjectKey]()
        for subject in await self.prepare(events):
            while (lease := self._leases.of(subject)) is None:
                await self.prepare(events)
            if lease.key is None:
                raise SubjectErased(subject)
            keys[subject] = lease.key
        self._leases.trim()
        return seal_events(list(events), keys, aggregate_id, command_id)

    async def prepare(self, events: Sequence[NewEvent]) -> set[str]:
        """Leases the keys of all subjects of these events. Returns the subjects. Raises as `sealed`, but SubjectErased."""
        if not can_seal():
            raise missing_extra()
        subjects = {event.subject or "" for event in events if isinstance(event, UnsealedEvent)}
        while wanted := self._leases.wanting(subjects, time.monotonic(), create=True):
            await self._lease(wanted, create=True)
        return subjects

    async def _lease(self, wanted: tuple[str, ...], *, create: bool) -> None:
        asked_at = time.monotonic()
        answer = cast(LeasedKeys, await self._ask(wanted, create))
        first = next((each for each in answer.keys if each.subject == wanted[0]), None)
        if first is None or (create and first.secret is None and not first.erased):
            raise ProtocolError(f"the key of {wanted[0]!r} was asked for, and is not in the answer", field="subjects")
        self._leases.take(answer, asked_at)

    async def _lease_each(self, wanted: tuple[str, ...]) -> None:
        """Asks for one at a time: a request is refused whole if the client may not have one of the keys."""
        for subject in wanted:
            try:
                await self._lease((subject,), create=False)
            except _REFUSALS:
                self._leases.refused((subject,), time.monotonic())
