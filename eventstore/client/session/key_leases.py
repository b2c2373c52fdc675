"""The keys of subjects that a client was given, each for a minute or so; sans-io."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from eventstore.errors import Corrupt
from eventstore.model import PersonalEvent
from eventstore.protocol.limits import SUBJECTS_PER_REQUEST_MAX
from eventstore.protocol.subject_requests import LeasedKeys
from eventstore.sealing import SubjectKey

_KEPT_MAX: Final = 10_000  # some 400 bytes each
REFUSED_S: Final = 5
"""For how long a client does not ask again for what it was refused, or what does not exist."""


@dataclass(frozen=True, slots=True)
class KeyLease:
    """What is known of a subject up to a time of the monotonic clock. `key` None: it has none, or not for this client."""

    key: SubjectKey | None
    erased: bool
    until: float


class KeyLeases:
    """The leases of a client; those that were used longest ago are dropped."""

    def __init__(self) -> None:
        self._leases: OrderedDict[str, KeyLease] = OrderedDict()

    def wanting(self, subjects: Iterable[str], now: float, *, create: bool = False) -> tuple[str, ...]:
        """Returns those of the subjects to ask for, in one request. `create`: also those that had no key."""
        found = []
        for subject in dict.fromkeys(subjects):
            lease = self._leases.get(subject)
            if lease is None or now >= lease.until or (create and lease.key is None and not lease.erased):
                found.append(subject)
                if len(found) == SUBJECTS_PER_REQUEST_MAX:
                    break
        return tuple(found)

    def take(self, answer: LeasedKeys, asked_at: float) -> None:
        """Takes an answer to a request that was sent at this time: the lease runs from then."""
        for subject, secret, erased in answer.keys:
            key = None if secret is None else SubjectKey(secret)
            self._keep(subject, KeyLease(key, erased, asked_at + max(1, answer.lease_s if key or erased else REFUSED_S)))

    def refused(self, subjects: Iterable[str], now: float) -> None:
        """Takes that the client does not get these."""
        for subject in subjects:
            self._keep(subject, KeyLease(None, False, now + REFUSED_S))

    def of(self, subject: str) -> KeyLease | None:
        """Returns the lease of a subject; None: it was not asked for, or was dropped since by another thread."""
        return self._leases.get(subject)

    def open(self, events: Sequence[PersonalEvent], subjects: Sequence[str]) -> None:
        """Decrypts the events, in them; those of erased subjects are marked so. What has no key stays encrypted, and what its
        key does not open: whoever may append can have stored that.
        """
        leases = self._leases
        for event, subject in zip(events, subjects, strict=True):
            lease = leases.get(subject)
            if lease is None:
                continue
            if lease.erased:
                event.forgotten = True
            elif lease.key is not None:
                try:
                    lease.key.open(event)
                except Corrupt:
                    continue

    def trim(self) -> None:
        """Drops what is too much. Not before what was asked for is used."""
        while len(self._leases) > _KEPT_MAX:
            with suppress(KeyError):  # another thread has dropped the last
                self._leases.popitem(last=False)

    def _keep(self, subject: str, lease: KeyLease) -> None:
        self._leases[subject] = lease
        self._leases.move_to_end(subject)
