from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import trio

import eventstore as es
from eventstore.settings.store import StoreSettings
from tests.cli.processes import Server
from tests.examples import EXAMPLES

SMALL_FILES = StoreSettings(file_size_bytes=64 * 1024, preallocate_bytes=16 * 1024)


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server shared by tests that use different aggregates."""
    server = Server(tmp_path_factory.mktemp("shared") / "data")
    yield server
    server.close()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts servers on separate folders, and ends them with the test."""
    servers: list[Server] = []

    def begin(*options: str, data: Path | None = None) -> Server:
        servers.append(Server(data or tmp_path / "data", *options))
        return servers[-1]

    yield begin
    for server in servers:
        server.close()


async def _fill(path: Path, settings: StoreSettings) -> None:
    async with es.open_store(path, settings) as store:
        for number in range(0, 1_200, 100):
            await store.append_many([_commit(place) for place in range(number, number + 100)])
        if settings.sort:
            await store.maintenance.wait_until_sorted()


def _commit(place: int) -> es.Commit:
    events = [es.NewEvent("Happened", {"place": place, "text": "x" * 60}), es.NewEvent("Noted", b"\x00raw", {"by": "me"})]
    return es.Commit(f"aggregate-{place * 37 % 90}", events[: 1 + place % 2], es.ANY, f"command-{place}")


@pytest.fixture(scope="session")
def _filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("filled")
    trio.run(_fill, path / "sorted", SMALL_FILES)
    trio.run(_fill, path / "unsorted", replace(SMALL_FILES, sort=False))
    return path


@pytest.fixture
def folder(_filled: Path, tmp_path: Path) -> Path:
    """A data folder with several sorted event files and an ongoing one, not being served. The test may damage it."""
    return Path(shutil.copytree(_filled / "sorted", tmp_path / "data"))


@pytest.fixture
def unsorted_folder(_filled: Path, tmp_path: Path) -> Path:
    """The same events in completed files that are not sorted."""
    return Path(shutil.copytree(_filled / "unsorted", tmp_path / "unsorted"))


@pytest.fixture(scope="module")
def examples() -> Iterator[Path]:
    """The folder docs/examples, on the path of every process that a test starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(EXAMPLES))
        yield EXAMPLES


@pytest.fixture(scope="module")
def bank(examples: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that runs the bank, shared by tests that use different accounts."""
    server = Server(tmp_path_factory.mktemp("bank") / "data", "--domain", "bank:app")
    yield server
    server.close()
