"""A library lends books: a store, watched while it stores, sorts and recovers."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import eventstore as es
from demo.server_process import PROGRAM, ServerProcess
from demo.stage import DemoFailed, Stage, expect, wait_until
from eventstore import blocking
from eventstore.client.blocking.store import BlockingStore

BOOKS: Final = 150
COMMANDS: Final = 4_000
FILE_SIZE_BYTES: Final = 128 * 1024
_READERS: Final = ("Ada", "Grace", "Barbara", "Edsger", "Tony", "Leslie")


@dataclass(slots=True)
class Library:
    """Makes the commits that the demo appends, and remembers them for the comparison."""

    chance: random.Random = field(default_factory=lambda: random.Random(7))
    history: dict[str, list[tuple[str, object]]] = field(default_factory=dict)
    lent_to: dict[str, str] = field(default_factory=dict)

    def acquire(self) -> Iterator[es.Commit]:
        for number in range(1, BOOKS + 1):
            yield self._commit(f"book-{number}", f"acquire-{number}", [("BookAcquired", {"shelf": number % 12})])

    def lend(self) -> Iterator[es.Commit]:
        """Lends books and takes them back; for a late one a fee is charged in the same commit."""
        for number in range(COMMANDS):
            book = f"book-{self.chance.randint(1, BOOKS)}"
            reader = self.lent_to.pop(book, None)
            if reader is None:
                self.lent_to[book] = self.chance.choice(_READERS)
                made: list[tuple[str, object]] = [("BookLent", {"reader": self.lent_to[book], "days": 14})]
            else:
                made = [("BookReturned", {"reader": reader})]
                if self.chance.random() < 0.2:
                    made.append(("FeeCharged", {"reader": reader, "cents": 50}))
            yield self._commit(book, f"command-{number}", made)

    def _commit(self, book: str, command_id: str, made: list[tuple[str, object]]) -> es.Commit:
        history = self.history.setdefault(book, [])
        commit = es.Commit(book, [es.NewEvent(*event) for event in made], len(history), command_id)
        history += made
        return commit


class LibraryStory:
    """The scenes, in order."""

    def __init__(self, scratch: Path, stage: Stage) -> None:
        self._stage = stage
        self._server = ServerProcess(scratch, "--file-size-bytes", str(FILE_SIZE_BYTES))
        self._library = Library()

    def run(self) -> None:
        try:
            self._stage.say(
                "A server on an empty folder", f"event files of {FILE_SIZE_BYTES // 1024} KB, every append is synced"
            )
            self._server.start()
            with blocking.connect(self._server.address) as store:
                self._append(store)
                self._sort(store)
                self._replay(store)
                self._repeat(store)
                self._conflict(store)
            self._restart()
            self._verify()
        finally:
            self._server.close()

    def _append(self, store: BlockingStore) -> None:
        started = time.perf_counter()
        outcomes = store.append_many([*self._library.acquire(), *self._library.lend()])
        seconds = time.perf_counter() - started
        for outcome in outcomes:
            expect(isinstance(outcome, es.Committed) and not outcome.duplicate, f"an append failed: {outcome}")
        events = sum(map(len, self._library.history.values()))
        expect(store.stats()["events"] == events, "the server counts other events than were appended")
        self._stage.say(
            f"{events:,} events of {BOOKS} books appended over TCP",
            f"{len(outcomes):,} commits, each at the version it was decided on; {events / seconds:,.0f} events/s",
        )

    def _sort(self, store: BlockingStore) -> None:
        wait_until(lambda: store.stats()["unsorted_files"] == 1, "completed event files are sorted")
        figures = store.stats()
        done = int(figures["sorted_files"] or 0)
        expect(done >= 3, f"{done} files were sorted, at least 3 should be")
        self._stage.say(
            f"{int(figures['event_files'] or 0)} event files: {done} completed, sorted and indexed, 1 being written"
        )

    def _replay(self, store: BlockingStore) -> None:
        book = max(self._library.history, key=lambda name: len(self._library.history[name]))
        events = list(store.read(book))
        expected = self._library.history[book]
        expect([(event.type, event.json()) for event in events] == expected, f"{book} does not replay as it was appended")
        expect([event.version for event in events] == list(range(1, len(expected) + 1)), "versions have a gap")
        self._stage.say(
            f"{book} replayed: {len(events)} events, from several files", "exactly as appended; the first and last:"
        )
        shown = [*events[:3], *events[-2:]]
        self._stage.show(
            ("version", "sequence", "type", "data"),
            [(event.version, event.sequence, event.type, event.data.decode()) for event in shown],
        )

    def _repeat(self, store: BlockingStore) -> None:
        before = store.stats()["events"]
        first = store.append("book-1", [es.NewEvent("BookDamaged", {"page": 12})], es.EXISTS, "damage-1")
        again = store.append("book-1", [es.NewEvent("BookDamaged", {"page": 12})], es.EXISTS, "damage-1")
        self._library.history["book-1"].append(("BookDamaged", {"page": 12}))
        expect(
            again.duplicate and (again.version, again.sequence) == (first.version, first.sequence), "a repetition was stored"
        )
        expect(store.stats()["events"] == int(before or 0) + 1, "a repetition was stored")
        self._stage.say("The same command sent twice", f"{first}\n{again}\nnothing was written the second time")

    def _conflict(self, store: BlockingStore) -> None:
        try:
            store.append("book-1", [es.NewEvent("BookLent", {"reader": "Nobody"})], 1)
        except es.VersionConflict as conflict:
            expect(conflict.actual == len(self._library.history["book-1"]), "the conflict names another version")
            self._stage.say("A decision based on an old version", f"refused: {conflict}")
        else:
            raise DemoFailed("an append at an old version was accepted")

    def _restart(self) -> None:
        expect(self._server.stop(signal.SIGTERM) == 0, "SIGTERM did not end the server with exit code 0")
        self._show_start("Stopped with SIGTERM and started again", self._server.start())
        self._server.stop(signal.SIGKILL)
        self._show_start("Killed with SIGKILL and started again", self._server.start())
        with blocking.connect(self._server.address) as store:
            for book, expected in self._library.history.items():
                found = [(event.type, event.json()) for event in store.read(book)]
                expect(found == expected, f"{book} differs from before the restart")
        self._stage.say(f"All {BOOKS} books replayed once more", "every event is there, in order")

    def _show_start(self, title: str, said: dict[str, object]) -> None:
        events = sum(map(len, self._library.history.values()))
        expect(said["events"] == events, f"{said['events']} events after the restart, {events} before")
        self._stage.say(
            title,
            f"{said['events']:,} events in {said['event_files']} files, open after {said['open_seconds']} s; "
            f"torn bytes: {said['torn_bytes']}; directory: {said['directory']}",
        )

    def _verify(self) -> None:
        expect(self._server.stop(signal.SIGTERM) == 0, "SIGTERM did not end the server with exit code 0")
        result = subprocess.run([*PROGRAM, "verify", str(self._server.data)], check=False, capture_output=True, text=True)
        expect(result.returncode == 0, f"eventstore verify found faults: {result.stdout}{result.stderr}")
        self._stage.say("eventstore verify", result.stdout.strip())
