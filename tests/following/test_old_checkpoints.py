"""Checkpoints of every follower that an earlier program left are continued: each event is handled once, by each of them.

They are those in `tests/fixtures/checkpoints`: of a store, of the only shard of a cluster, and of two shards after a split.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import eventstore.domain as d
from tests.cluster.led_shards import LedShards
from tests.domain.projections.conftest import postgresql_address  # noqa: F401 # a fixture
from tests.fixtures import followed
from tests.fixtures.followed import STUCK
from tests.fixtures.write_checkpoints import CALLERS, FOLDER, SETTINGS, Handled, World
from tests.waiting import wait_until

pytestmark = pytest.mark.heavy
KINDS = {"store": 1, "shard": 1, "split": 2}
"""How many calls of each caller there are."""

_OF_POSTGRESQL = """
CREATE TABLE eventstore_checkpoints (projection text PRIMARY KEY, sequence bigint NOT NULL, store text, identity text,
  generation bigint NOT NULL DEFAULT 0, version integer);
CREATE TABLE eventstore_parked (projection text, key text, sequence bigint NOT NULL, error text NOT NULL,
  generation bigint NOT NULL, PRIMARY KEY (projection, key));
CREATE TABLE calls (key text PRIMARY KEY, calls bigint, state json);
"""
"""The tables as they were made when the others were written."""


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    for each in (followed.failing, followed.echoed, followed.noted):
        each.clear()
    yield str(request.param)
    followed.failing.clear()


def copied(kind: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(FOLDER / kind, tmp_path / kind))


def opened(kind: str, folder: Path) -> World:
    return World(folder, None if kind == "store" else LedShards(folder, 1, **SETTINGS))


def calls(*numbers: int, callers: tuple[str, ...] = CALLERS) -> Handled:
    return sorted((caller, number) for caller in callers for number in numbers)


def retry(world: World, name: str) -> None:
    world.each(lambda store: store.reactions.retry(name, who="ada", why="mended"))


def check_continued(world: World, kind: str) -> None:
    """Checks that everything continues where it was: what is new is handled, what is parked when it is retried, no more."""
    new, old, stuck = KINDS[kind], range(KINDS[kind]), set[tuple[str, int]]()
    followed.failing[:] = [True]
    wait_until(world.settled, "it stands where it stood")
    world.call(new)
    wait_until(world.settled, "all is handled")
    done = world.follow()
    others = tuple(each for each in CALLERS if each != STUCK)
    assert (done.projected, done.relayed, done.streamed, done.read) == (len(CALLERS), *[calls(new)] * 3)
    assert world.table() == dict.fromkeys(others, new + 1)
    assert sorted(followed.echoed) == calls(new, callers=others)
    stuck = {(STUCK, version + 1) for version in range(new + 1)}
    assert world.parked("echo") == world.parked("topic:calls") == stuck
    assert world.messages("calls") == calls(*old, new, callers=others)
    if world.worker is not None:
        wait_until(lambda: sorted(followed.noted) == calls(new, callers=others), "the worker has handled all")

    followed.failing.clear()
    retry(world, "echo")
    retry(world, "topic:calls")
    assert sorted(followed.echoed) == sorted(calls(new, callers=others) + calls(*old, new, callers=(STUCK,)))
    assert world.messages("calls") == calls(*old, new)
    world.follow()
    assert world.table() == dict.fromkeys(CALLERS, new + 1)
    assert not world.parked("echo") | world.parked("topic:calls")


def test_every_follower_continues_where_an_earlier_program_left_it(kind: str, tmp_path: Path) -> None:
    with opened(kind, copied(kind, tmp_path)) as world:
        check_continued(world, kind)


@pytest.mark.parametrize("kind", ["shard"], indirect=True)
def test_every_follower_continues_through_a_split_from_where_an_earlier_program_left_it(kind: str, tmp_path: Path) -> None:
    with opened(kind, copied(kind, tmp_path)) as world:
        followed.failing[:] = [True]
        wait_until(world.settled, "it stands where it stood")
        assert world.cluster is not None
        world.cluster.split(0)
        check_continued(world, kind)


def change(path: Path, what: Callable[[Any], Any]) -> None:
    path.write_text(json.dumps(what(json.loads(path.read_text()))))


def without_identities(folder: Path) -> None:
    """Gives all documents and rows the form of before the identities of events were kept."""
    for path in [*folder.glob("worker*.json"), *folder.glob("*/reactions.json")]:
        change(path, lambda each: {"sequence": min(mark["sequence"] for mark in each["reactions"].values())})
    for path in [*folder.glob("relay*.json"), *folder.glob("*/published*.json")]:
        change(path, lambda each: {name: value for name, value in each.items() if name not in ("event", "parked_after")})
    change(folder / "stream.json", lambda each: {store: place[0] for store, place in each.items()})
    with closing(sqlite3.connect(folder / "rows.db")) as connection, connection:
        connection.execute("UPDATE eventstore_checkpoints SET identity = NULL, version = NULL")


def test_so_it_does_from_the_form_of_before_identities_were_kept(kind: str, tmp_path: Path) -> None:
    folder = copied(kind, tmp_path)
    without_identities(folder)
    with opened(kind, folder) as world:
        check_continued(world, kind)


def test_a_table_in_postgresql_is_continued_as_well(
    kind: str,
    tmp_path: Path,
    postgresql_address: str,  # noqa: F811 # the fixture
) -> None:
    import psycopg

    folder, schema = copied(kind, tmp_path), f"followed_{kind}"
    with psycopg.connect(postgresql_address, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}; SET search_path TO {schema}; {_OF_POSTGRESQL}")
        with closing(sqlite3.connect(folder / "rows.db")) as source:
            for table in ("eventstore_checkpoints", "eventstore_parked", "calls"):
                rows = source.execute(f"SELECT * FROM {table}").fetchall()
                columns = ", ".join(each[1] for each in source.execute(f"PRAGMA table_info({table})"))
                places = ", ".join(["%s"] * len(rows[0]))
                connection.cursor().executemany(f"INSERT INTO {table} ({columns}) VALUES ({places})", rows)
        with opened(kind, folder) as world:
            address = f"{postgresql_address}?options=-csearch_path%3D{schema}"
            world.target = lambda: d.target_at(address)
            followed.failing[:] = [True]
            world.call(KINDS[kind])
            assert world.follow().projected == len(CALLERS)
            followed.failing.clear()
            world.follow()
        found = dict(connection.execute("SELECT key, calls FROM calls").fetchall())
        assert found == dict.fromkeys(CALLERS, KINDS[kind] + 1)
