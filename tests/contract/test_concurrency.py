"""Concurrent calls: of conflicting ones exactly one wins, and no events are lost or mixed up."""

from __future__ import annotations

from typing import Any

import anyio

import eventstore as es
from tests.contract.subjects import Subject, collect, contract, event


@contract
async def test_of_writers_with_the_same_expected_version_exactly_one_wins(subject: Subject) -> None:
    won: list[tuple[int, int]] = []
    conflicts: list[int] = []

    async def write(store: Any, writer: int, version: int) -> None:
        try:
            await store.append("a", [event(writer)], version)
        except es.VersionConflict as conflict:
            conflicts.append(conflict.actual)
        else:
            won.append((version, writer))

    async with subject.another() as other:
        second = subject.store if subject.embedded else other
        for version in range(15):
            async with anyio.create_task_group() as tasks:
                for writer in range(6):
                    tasks.start_soon(write, (subject.store, second)[writer % 2], writer, version)
            assert conflicts == [version + 1] * 5
            conflicts.clear()
    assert [version for version, _ in won] == list(range(15))
    assert [each.json() for each in await collect(subject.store.read("a"))] == [{"number": winner} for _, winner in won]


@contract
async def test_appends_of_many_tasks_are_all_there_and_in_each_tasks_order(subject: Subject) -> None:
    done: dict[str, list[es.Committed]] = {}

    async def write(name: str) -> None:
        done[name] = [await subject.store.append(name, [event(n)] * (1 + n % 3), es.ANY) for n in range(25)]

    async with anyio.create_task_group() as tasks:
        for writer in range(16):
            tasks.start_soon(write, f"a-{writer}")
    subject.check_gapless(await subject.all())
    for name, outcomes in done.items():
        own = await collect(subject.store.read(name))
        assert [each.version for each in own] == list(range(1, 50))
        assert [each.json() for each in own] == [{"number": n} for n in range(25) for _ in range(1 + n % 3)]
        assert [own[outcome.version - 1].sequence for outcome in outcomes] == [outcome.sequence for outcome in outcomes]


@contract
async def test_the_same_command_sent_by_many_at_once_is_carried_out_once(subject: Subject) -> None:
    outcomes: list[es.Committed] = []

    async def send() -> None:
        outcomes.append(await subject.store.append("a", [event(1), event(2)], 0, "c-1"))

    async with anyio.create_task_group() as tasks:
        for _ in range(12):
            tasks.start_soon(send)
    assert [(each.version, each.sequence) for each in outcomes] == [(2, 2)] * 12
    assert [each.duplicate for each in outcomes].count(False) == 1
    assert len(await subject.all()) == 2


@contract
async def test_a_cancelled_append_is_settled_by_its_command_id(subject: Subject) -> None:
    for round_ in range(10):
        async with anyio.create_task_group() as tasks:
            for writer in range(5):
                tasks.start_soon(subject.store.append, f"a-{writer}", [event(round_)], round_, f"c-{round_}")
            for _ in range(round_):
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
        for writer in range(5):
            settled = await subject.store.append(f"a-{writer}", [event(round_)], round_, f"c-{round_}")
            assert settled.version == round_ + 1
    assert len(await subject.all()) == 50


@contract
async def test_readers_see_only_whole_commits(subject: Subject) -> None:
    async with anyio.create_task_group() as tasks:

        async def write() -> None:
            for version in range(0, 150, 5):
                await subject.store.append("a", [event(version + n) for n in range(5)], version)

        tasks.start_soon(write)
        seen = 0
        while seen < 150:
            seen = len(await collect(subject.store.read("a")))
            assert seen % 5 == 0
            assert len(await subject.all()) % 5 == 0
            assert await subject.store.version("a") % 5 == 0
