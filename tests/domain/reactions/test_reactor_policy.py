"""The policy of reactions: what one cannot handle is parked and holds up only its aggregate; each has its own checkpoint."""

from __future__ import annotations

import asyncio
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

import eventstore as es
import eventstore.domain as d
from bank import Opened
from eventstore.domain.reactions.checkpoint import FileCheckpoint, ReactionMarks
from eventstore.domain.reactions.reaction import OnFailure, Start
from eventstore.domain.reactions.reactor import Reactor
from eventstore.following.checkpoint import Checkpoint
from eventstore.model import DATA_IS_JSON
from eventstore.store.embedded import EmbeddedStore
from tests.domain.runner import new_events
from tests.raising import NoText, TextEnds, cancelled_by_asyncio, cancelled_by_trio
from tests.server_thread import ServerThread


async def nowhere(command: object, command_id: str, *, metadata: Mapping[str, object]) -> es.Committed | None:
    raise AssertionError("nothing is sent")


def noting(
    seen: list[tuple[str, int]], failing: Mapping[str, BaseException], *, name: str = "note", start: Start = "beginning",
    on_failure: OnFailure = "park", app: d.Domain | None = None,
) -> d.Domain:  # fmt: skip
    """Returns a domain with a reaction that notes aggregate and version of its events, and fails for some aggregates."""
    app = app or d.Domain()

    @app.reacts(Opened, name=name, start=start, on_failure=on_failure)
    async def note(event: Opened, send: d.Send) -> None:
        if send.cause.aggregate_id in failing:
            raise failing[send.cause.aggregate_id]
        seen.append((send.cause.aggregate_id, send.cause.version))

    return app


async def react(store: EmbeddedStore, app: d.Domain, checkpoint: FileCheckpoint) -> int:
    return await d.react(store, app, nowhere, checkpoint, until_caught_up=True)


async def opened(store: EmbeddedStore, *aggregate_ids: str) -> None:
    for aggregate_id in aggregate_ids:
        await store.append(aggregate_id, new_events(Opened("Ada")), es.ANY)


@pytest.mark.parametrize(
    "error", [d.Rejected("no"), ValueError("a bug"), ValueError("\ud800 \0"), es.PayloadInvalid("it does not fit")]
)
async def test_what_fails_is_parked_with_what_follows_in_its_aggregate_and_all_others_go_on(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, error: Exception
) -> None:
    seen: list[tuple[str, int]] = []
    async with es.open_store(tmp_path / "store") as store:
        await opened(store, "a", "b", "a", "c", "b")
        checkpoint = FileCheckpoint(tmp_path / "reactions.json")
        app = noting(seen, {"a": error})
        assert await react(store, app, checkpoint) == 5
        await opened(store, "a", "c")
        await react(store, app, checkpoint)
        assert sorted(seen) == [("b", 1), ("b", 2), ("c", 1), ("c", 2)]
        records = [each async for each in store.read("$parked{a}")]
    assert [(each.type, each.json()["version"]) for each in records] == [("$Parked", 1), ("$Parked", 2), ("$Parked", 3)]
    assert type(error).__name__ in records[0].json()["why"]
    assert records[1].json()["why"] == "waits for version 1"
    assert checkpoint.load().reactions["note"].sequence == 9  # two records of what is parked are between


@pytest.mark.parametrize(
    "error",
    [asyncio.CancelledError(), SystemExit(3), GeneratorExit(), NoText(None), TextEnds(), None],
    ids=lambda each: type(each).__name__,
)
async def test_whatever_else_a_reaction_raises_is_parked_as_well(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, error: BaseException | None
) -> None:
    seen: list[str] = []
    app = d.Domain()

    @app.reacts(Opened, attempts=2)
    async def note(event: Opened, send: d.Send) -> None:
        seen.append(send.cause.aggregate_id)
        if send.cause.aggregate_id == "a":
            if error is None:
                await cancelled_by_trio()
            else:
                raise error

    async with es.open_store(tmp_path / "store") as store:
        await opened(store, "a", "b")
        await react(store, app, FileCheckpoint(tmp_path / "reactions.json"))
        (record,) = [each async for each in store.read("$parked{a}")]
    assert sorted(seen) == ["a", "a", "b"]
    assert (record.type, record.json()["version"], record.json()["attempts"]) == ("$Parked", 1, 2)
    assert record.json()["why"]


def test_a_reaction_that_ends_by_a_cancellation_of_its_own_on_asyncio_is_parked(tmp_path: Path) -> None:
    app, seen = d.Domain(), list[str]()

    @app.reacts(Opened, attempts=2)
    async def note(event: Opened, send: d.Send) -> None:
        seen.append(send.cause.aggregate_id)
        if send.cause.aggregate_id == "a":
            await cancelled_by_asyncio()

    async def main() -> None:
        async with es.connect(server.address) as store:
            for aggregate_id in "ab":
                await store.append(aggregate_id, new_events(Opened("Ada")), es.ANY)
            await d.react(store, app, nowhere, FileCheckpoint(tmp_path / "reactions.json"), until_caught_up=True)
            assert [each.type async for each in store.read("$parked{a}")] == ["$Parked"]

    with ServerThread(tmp_path / "data") as server:
        asyncio.run(main())
    assert sorted(seen) == ["a", "a", "b"]


async def test_an_interrupted_reaction_is_not_parked(tmp_path: Path) -> None:
    async with es.open_store(tmp_path / "store") as store:
        await opened(store, "a")
        with pytest.raises(BaseExceptionGroup) as raised:
            await react(store, noting([], {"a": KeyboardInterrupt()}), FileCheckpoint(tmp_path / "reactions.json"))
        assert raised.group_contains(KeyboardInterrupt)
        assert [each async for each in store.read("$parked{a}")] == []


async def test_a_reaction_that_is_closed_while_it_waits_has_not_failed(tmp_path: Path) -> None:
    app = d.Domain()

    @types.coroutine
    def turn() -> Iterator[str]:
        yield "waits"

    @app.reacts(Opened, attempts=1)
    async def note(event: Opened, send: d.Send) -> None:
        await turn()

    async with es.open_store(tmp_path / "store") as store:
        await opened(store, "a")
        (event,) = [each async for each in store.read("a")]
        (run,) = Reactor(store, app, nowhere, FileCheckpoint(tmp_path / "reactions.json")).runs.values()
        attempt: Any = run._attempt(event)
        assert attempt.send(None) == "waits"
        attempt.close()
        assert run.follower.error is None


async def test_an_end_of_the_task_is_raised_as_it_is_when_nothing_can_be_loaded_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an upgrade of the package under the process, or without descriptors."""
    async with es.open_store(tmp_path / "store") as store:
        await opened(store, "a")
        (event,) = [each async for each in store.read("a")]
        app = d.Domain()
        error: list[BaseException] = []

        @app.reacts(Opened, attempts=1)
        async def note(event: Opened, send: d.Send) -> None:
            for each in error:
                raise each
            await trio.sleep_forever()

        (run,) = Reactor(store, app, nowhere, FileCheckpoint(tmp_path / "reactions.json")).runs.values()
        monkeypatch.setitem(sys.modules, "eventstore.client.aio.cancellation", None)
        with trio.CancelScope() as scope:
            scope.cancel()
            await run._run(event)
        assert scope.cancelled_caught
        error.append(KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            await run._run(event)


@pytest.mark.parametrize("long", ["a" * 246, "a" * 247, "é" * 127 + "a", "x{ab}" * 51])
async def test_events_of_an_id_of_any_length_are_parked_and_found_again(tmp_path: Path, long: str) -> None:
    seen: list[tuple[str, int]] = []
    failing: dict[str, Exception] = {long: d.Rejected("no")}
    async with es.open_store(tmp_path / "store") as store:
        await opened(store, long, "b")
        checkpoint = FileCheckpoint(tmp_path / "reactions.json")
        await react(store, noting(seen, failing), checkpoint)
        await opened(store, long, long[:-1], "b")  # by another process: what is parked is read from the store
        reactor = Reactor(store, noting(seen, failing), nowhere, checkpoint)
        await reactor.run(until_caught_up=True, raises=True)
        assert [(each.aggregate_id, each.version) for each in reactor.parked.of("note")] == [(long, 1), (long, 2)]
        failing.clear()
        assert await reactor.runs["note"].retry(long, "a test", "mended") == 2
        again = Reactor(store, noting(seen, failing), nowhere, checkpoint)
        await again.run(until_caught_up=True, raises=True)
        assert not list(again.parked.of("note"))
    assert set(seen[:3]) == {("b", 1), (long[:-1], 1), ("b", 2)}
    assert seen[3:] == [(long, 1), (long, 2)]


async def test_600_events_behind_one_that_is_rejected_are_handled(tmp_path: Path) -> None:
    seen: list[tuple[str, int]] = []
    async with es.open_store(tmp_path / "store") as store:
        await opened(store, "poison")
        await store.append_many([es.Commit(f"a-{number}", new_events(Opened("Ada")), 0) for number in range(600)])
        await react(store, noting(seen, {"poison": d.Rejected("no")}), FileCheckpoint(tmp_path / "reactions.json"))
    assert len(seen) == 600


async def test_an_event_that_does_not_fit_its_class_is_parked(tmp_path: Path) -> None:
    seen: list[tuple[str, int]] = []
    async with es.open_store(tmp_path / "store") as store:
        await store.append("by-hand", [es.NewEvent("Opened", {"owner": 5})], 0)
        await opened(store, "a")
        await react(store, noting(seen, {}), FileCheckpoint(tmp_path / "reactions.json"))
        assert [each.json()["reaction"] async for each in store.read("$parked{by-hand}")] == ["note"]
    assert seen == [("a", 1)]


@pytest.mark.parametrize("format_", [0, DATA_IS_JSON], ids=["bytes", "said to be JSON"])
@pytest.mark.parametrize("data", [b"\xff", b"1" + b"0" * 30, b'{"owner":"\\u0000"}', b'{"owner":"\\ud800"}', b"[" * 5_000])
async def test_no_data_of_a_known_type_stop_the_reactions(tmp_path: Path, data: bytes, format_: int) -> None:
    seen: list[tuple[str, int]] = []
    async with es.open_store(tmp_path / "store") as store:
        for aggregate_id in ("by-hand", "by\0hand"):
            await store.append(aggregate_id, [tuple.__new__(es.NewEvent, (format_, "Opened", data, None))], 0)
        await opened(store, "a")
        checkpoint = FileCheckpoint(tmp_path / "reactions.json")
        await react(store, noting(seen, {}), checkpoint)
        await opened(store, "a", "b")
        await react(store, noting(seen, {}), checkpoint)
    assert sorted(each for each in seen if "hand" not in each[0]) == [("a", 1), ("a", 2), ("b", 1)]


async def test_each_reaction_has_its_own_checkpoint_and_a_stopped_one_holds_up_no_other(tmp_path: Path) -> None:
    first: list[tuple[str, int]] = []
    second: list[tuple[str, int]] = []
    failing: dict[str, Exception] = {"b": d.Rejected("no")}
    app = noting(second, {}, name="second", app=noting(first, failing, name="first", on_failure="stop"))
    checkpoint = FileCheckpoint(tmp_path / "reactions.json")
    async with es.open_store(tmp_path / "store") as store:
        await opened(store, "a", "b", "c")
        with pytest.raises(es.ProjectionFailed, match="reaction 'first' failed at sequence 2, aggregate 'b'"):
            await react(store, app, checkpoint)
        failing.clear()
        await react(store, app, checkpoint)
        assert {name: mark.sequence for name, mark in checkpoint.load().reactions.items()} == {"first": 3, "second": 3}
    assert set(first) == set(second) == {("a", 1), ("b", 1), ("c", 1)}


@pytest.mark.parametrize(("start", "handled"), [("beginning", [1, 2, 3, 4]), (2, [2, 3, 4]), ("end", [4])])
async def test_a_new_reaction_starts_where_it_declares(tmp_path: Path, start: Start, handled: list[int]) -> None:
    seen: list[tuple[str, int]] = []
    checkpoint = FileCheckpoint(tmp_path / "reactions.json")
    async with es.open_store(tmp_path / "store") as store:
        await opened(store, "a", "a", "a")
        app = noting(seen, {}, name="new", start=start)
        await react(store, app, checkpoint)
        await opened(store, "a")
        await react(store, app, checkpoint)
    assert [version for _, version in seen] == handled


async def test_a_replay_that_comes_when_a_batch_has_just_been_handled_is_not_lost(tmp_path: Path) -> None:
    seen: list[int] = []
    app = d.Domain()

    @app.reacts(Opened)
    async def note(event: Opened, send: d.Send) -> None:
        seen.append(send.cause.version)
        if len(seen) == 2:
            await reactor.replay("note", 0, "by the test")

    async with es.open_store(tmp_path / "store") as store:
        reactor = Reactor(store, app, nowhere, FileCheckpoint(tmp_path / "reactions.json"))
        await opened(store, "a", "a")
        await reactor.run(until_caught_up=True, raises=True)
    assert seen == [1, 2, 1, 2]


async def test_the_checkpoint_of_the_last_version_is_carried_over(tmp_path: Path) -> None:
    seen: list[tuple[str, int]] = []
    (tmp_path / "reactions.json").write_text('{"sequence": 2}')
    checkpoint = FileCheckpoint(tmp_path / "reactions.json")
    async with es.open_store(tmp_path / "store") as store:
        await opened(store, "a", "a", "a")
        await react(store, noting(seen, {}), checkpoint)
    assert [version for _, version in seen] == [3]
    assert checkpoint.load().reactions["note"].identity is not None


@pytest.mark.parametrize("old", [False, True], ids=["this version", "the last version"])
async def test_a_store_that_lacks_the_checkpoints_event_is_refused_for_ever(tmp_path: Path, old: bool) -> None:
    seen: list[tuple[str, int]] = []
    checkpoint = FileCheckpoint(tmp_path / "reactions.json")
    if old:
        (tmp_path / "reactions.json").write_text('{"sequence": 3}')
    async with es.open_store(tmp_path / "store") as store:
        uuid = str((await store.stats())["store"])
        if not old:
            checkpoint.save(ReactionMarks(uuid, 0, {"note": Checkpoint(3, "0" * 32)}))
        for aggregate_ids in ["a"], ["b", "c"]:  # then the store has as many events as the checkpoint counts
            await opened(store, *aggregate_ids)
            with pytest.raises(es.Diverged, match="eventstore reactions replay note --from"):
                await react(store, noting(seen, {}), checkpoint)
    assert seen == []


async def test_a_checkpoint_of_another_store_is_refused(tmp_path: Path) -> None:
    checkpoint = FileCheckpoint(tmp_path / "reactions.json")
    checkpoint.save(ReactionMarks("another", 0, {"note": Checkpoint(1, "0" * 32)}))
    async with es.open_store(tmp_path / "store") as store:
        await opened(store, "a")
        with pytest.raises(es.Diverged, match="was made from store another"):
            await react(store, noting([], {}), checkpoint)


async def test_ids_that_begin_with_a_dollar_are_the_servers_own(tmp_path: Path) -> None:
    async with es.open_store(tmp_path / "store") as store:
        with pytest.raises(es.InvalidArgument, match="reserved"):
            await store.append("$parked{a}", [es.NewEvent("T")], es.ANY)
        refused, done = await store.append_many([es.Commit(name, [es.NewEvent("T")], es.ANY) for name in ("$a", "a")])
        assert isinstance(refused, es.InvalidArgument)
        assert isinstance(done, es.Committed)


@pytest.mark.parametrize("policy", [{"start": 0}, {"start": "now"}, {"on_failure": "skip"}, {"attempts": 0}])
def test_a_policy_that_does_not_exist_is_refused_where_it_is_declared(policy: dict[str, object]) -> None:
    with pytest.raises(es.EventStoreError, match=next(iter(policy))):
        d.Domain().reacts(Opened, **policy)(_nothing)  # type: ignore[arg-type] # on purpose


async def _nothing(event: Opened, send: d.Send) -> None:
    """Reacts to nothing."""
