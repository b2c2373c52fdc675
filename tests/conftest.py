"""Ends tests that hang, and spares all tests what no test can see: syncs, and garbage collection of the other tests."""

from __future__ import annotations

import functools
import gc
import inspect
import itertools
import os
import signal
import traceback
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import lmdb
import pytest
import trio
from hypothesis import settings

import tests.examples  # noqa: F401 # puts them on the path

settings.register_profile("untimed", deadline=None)  # a busy machine fails no test
settings.load_profile("untimed")
HEAVY = (
    "broker/test_crashes", "broker/test_model", "cli/commands/", "cli/test_operations_page", "cli/test_output",
    "cli/test_planted_faults", "cluster/test_silent_addresses", "consumers/test_survival", "contract/test_listing",
    "documents/test_changing", "documents/test_cli_page", "documents/test_frameworks", "documents/test_names",
    "documents/test_pages", "documents/test_programs", "documents/test_tutorial", "documents/test_typed_programs",
    "domain/encoding/test_codec",
    "domain/projections/test_killed", "domain/projections/test_targets", "domain/projections/test_unstorable", "fuzz/",
    "server/broker/test_broker_kill", "server/commands/test_reactions", "server/work/test_work",
    "server/net/test_many_connections", "server/net/test_slow_clients", "server/outbox/", "server/requests/test_new_events",
    "server/requests/test_read_requests", "server/test_clients", "server/test_injected_faults", "server/test_interrupted",
    "server/test_kill", "server/test_stopping", "spark/", "store/faults/test_crashes", "store/faults/test_interrupted",
    "store/faults/test_torn_tail", "store/memory/test_tail", "store/memory/test_unsorted_tail",
    "store/sorted/test_directory", "store/sorted/test_sorting", "store/test_model",
)  # fmt: skip
"""Modules of `heavy` tests, by the beginning of their path: processes that are killed, Spark, crashes at every operation.
Single tests are marked in place.
"""
_FROZEN_AFTER = 10  # modules
SECONDS_MAX = 300.0  # less than `timeout` in pyproject.toml, which ends what does not wait in trio


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Spares `-m "not heavy"` the import of heavy modules: collecting them takes a third of its time."""
    path = collection_path.relative_to(Path(__file__).parent).as_posix()
    return True if config.option.markexpr == "not heavy" and path.startswith(HEAVY) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begins with Spark: whoever has nothing left takes of the last tests, and would start a Java of its own for them."""
    items.sort(key=lambda item: not item.nodeid.startswith("tests/spark/"))


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.nodeid.removeprefix("tests/").startswith(HEAVY):
        item.add_marker(pytest.mark.heavy)
    if not isinstance(item, pytest.Function) or not inspect.iscoroutinefunction(item.obj):
        return
    if not {"mock_clock", "autojump_clock"} & set(item.fixturenames):  # there seconds are no seconds
        item.obj = _ending(item.obj)


def _ending(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    @functools.wraps(test)
    async def ends(*args: object, **arguments: object) -> None:
        with trio.move_on_after(SECONDS_MAX) as scope:
            try:
                await test(*args, **arguments)
            except BaseException:
                if scope.cancel_called:
                    traceback.print_exc()
                raise
        assert not scope.cancelled_caught, f"not within {SECONDS_MAX:g} s; where it waited is printed above or below"

    return ends


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> None:
    """Restores Ctrl-C: a shell that runs the tests in the background makes them and their children ignore it."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _without_syncs() -> Iterator[None]:
    """Syncs nothing in this process. Real files of a test never lose power, so no test can see the difference; waiting for the
    disk is a third of the time of a test with a server. Servers that are started in processes of their own sync.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lmdb, "open", functools.partial(lmdb.open, sync=False))
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, _only_checked)
        yield


def _only_checked(file: int) -> None:
    os.fstat(file)


_modules = itertools.count(1)
_freeze = gc.freeze


@pytest.fixture(scope="session", autouse=True)
def _collected_without_the_tests() -> Iterator[None]:
    """Freezes the tests, which are half a million objects. A server collects garbage as it starts, and freezes the rest: here
    it would freeze what ends before the process, too, with its open files.
    """
    gc.collect()
    _freeze()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "freeze", _nothing)
        yield


@pytest.fixture(scope="module", autouse=True)
def _collected_without_what_stays() -> Iterator[None]:
    """Freezes what modules have loaded and left behind, now and then: their servers have ended."""
    yield
    if next(_modules) % _FROZEN_AFTER == 0:
        gc.collect()
        _freeze()


def _nothing() -> None:
    pass
