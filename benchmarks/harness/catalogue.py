"""Every subject by name, imported one by one so that no peer has to be installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TypeAlias

from benchmarks.harness.subject import Subject, Unavailable
from eventstore.extras import advice


def _eventstore() -> Subject:
    from benchmarks.ours.server import EventStore

    return EventStore()


def _embedded() -> Subject:
    from benchmarks.ours.embedded import EmbeddedEventStore

    return EmbeddedEventStore()


def _recorder() -> Subject:
    from benchmarks.ours.recorder import RecorderOnEventStore

    return RecorderOnEventStore()


def _postgresql() -> Subject:
    from benchmarks.peers.postgresql import PostgreSQL

    return PostgreSQL()


def _umadb() -> Subject:
    from benchmarks.peers.umadb import UmaDB

    return UmaDB()


def _eventsourcing() -> Subject:
    from benchmarks.peers.eventsourcing_sqlite import EventsourcingSQLite

    return EventsourcingSQLite()


def _redis() -> Subject:
    from benchmarks.peers.redis_streams import RedisStreams

    return RedisStreams()


OWN = "eventstore"
OURS = (OWN, "embedded", "recorder")
"""Our store over TCP, in process, and under `eventsourcing`; none counts as a peer of another."""

Catalogue: TypeAlias = Mapping[str, Callable[[], Subject]]

CATALOGUE: Catalogue = {
    OWN: _eventstore,
    "embedded": _embedded,
    "recorder": _recorder,
    "postgresql": _postgresql,
    "umadb": _umadb,
    "eventsourcing": _eventsourcing,
    "redis": _redis,
}
"""Every subject, by the name `--only` takes."""


@contextmanager
def started(
    keys: Sequence[str], catalogue: Catalogue, ours: Sequence[str]
) -> Iterator[tuple[dict[str, Subject], dict[str, str]]]:
    """The subjects of these keys that start, in order, and by name why the others do not; all stopped at the end.

    Every subject is stopped, even if another one fails to start, run or stop: no server outlives us.
    """
    running: dict[str, Subject] = {}
    skipped: dict[str, str] = {}
    with ExitStack() as stack:
        for key in keys:
            try:
                subject = catalogue[key]()
            except ImportError as error:
                skipped[key] = str(error) if key in ours else f"{error}; {advice('bench')}"
                continue
            stack.callback(subject.stop)
            try:
                subject.start()
            except Unavailable as error:
                skipped[subject.name] = str(error)
            else:
                running[key] = subject
        yield running, skipped
