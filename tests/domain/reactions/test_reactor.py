"""Reactions: their commands take effect once, however often the events are delivered."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bank
import eventstore as es
import eventstore.domain as d
from bank import Account, Deposit, Open, Opened, Transfer
from eventstore.domain.reactions.checkpoint import FileCheckpoint, MarkKeeper, ReactionCheckpoint, ReactionMarks
from eventstore.domain.reactions.reaction import OnFailure, SendCommand, command_id_of
from eventstore.domain.testing import stored
from eventstore.following.checkpoint import Checkpoint
from eventstore.model import Event
from eventstore.store.embedded import EmbeddedStore
from tests.domain.runner import execute, new_events
from tests.simulated_disk import SimulatedDisk
from tests.waiting import DEADLINE_SECONDS


class Remembered:
    """A checkpoint in memory."""

    def __init__(self) -> None:
        self.marks = ReactionMarks()
        self.saved: list[int] = []

    @property
    def sequence(self) -> int:
        return max((mark.sequence for mark in self.marks.reactions.values()), default=0)

    def load(self) -> ReactionMarks:
        return self.marks

    def save(self, marks: ReactionMarks) -> None:
        self.marks = marks
        self.saved.append(self.sequence)


async def open_accounts(send: SendCommand) -> None:
    for account, owner in (("a", "Ada"), ("b", "Bea")):
        await send(Open(account, owner), f"open-{account}")
    await send(Deposit("a", 100), "deposit")
    await send(Transfer("a", "b", 30), "transfer-1")
    await send(Transfer("a", "nobody", 50), "transfer-2")


async def react_until_quiet(store: EmbeddedStore, send: SendCommand, checkpoint: ReactionCheckpoint) -> None:
    """Runs the reactions until their commands cause no more events."""
    before = -1
    while before != (before := await d.react(store, bank.app, send, checkpoint, until_caught_up=True)):
        pass


async def test_a_transfer_arrives_and_one_to_an_unknown_account_comes_back(tmp_path: Path) -> None:
    async with es.open_store(tmp_path / "store") as store:

        async def send(command: object, command_id: str, *, metadata: object = None) -> es.Committed | None:
            return await execute(store, command, command_id)

        await open_accounts(send)
        checkpoint = FileCheckpoint(tmp_path / "reactions.json")
        await react_until_quiet(store, send, checkpoint)
        balances = {name: (await d.restore_from(store, Account, name)).balance for name in ("a", "b", "nobody")}
        sequence = (await store.stats())["events"]
    assert balances == {"a": 70, "b": 30, "nobody": 0}
    marks = checkpoint.load().reactions
    assert {name: mark.sequence for name, mark in marks.items()} == {"pay_in": sequence, "pay_back": sequence}


@pytest.mark.parametrize("crash_at", range(1, 4))
async def test_commands_take_effect_once_wherever_the_process_dies(tmp_path: Path, crash_at: int) -> None:
    async with es.open_store(tmp_path / "store") as store:
        sent: list[str] = []

        async def send(command: object, command_id: str, *, metadata: object = None) -> es.Committed | None:
            done = await execute(store, command, command_id)
            sent.append(command_id)
            if len(sent) == crash_at:
                raise es.Closed("killed after the command, before the checkpoint")
            return done

        async def plain(command: object, command_id: str, *, metadata: object = None) -> es.Committed | None:
            return await execute(store, command, command_id)

        await open_accounts(plain)
        checkpoint = Remembered()
        with pytest.raises(es.Closed, match="killed"):
            await react_until_quiet(store, send, checkpoint)
        await react_until_quiet(store, send, checkpoint)
        balances = {name: (await d.restore_from(store, Account, name)).balance for name in ("a", "b", "nobody")}
    assert balances == {"a": 70, "b": 30, "nobody": 0}
    assert len(sent) > len(set(sent)), "at least one was sent again"
    assert set(sent) == {"pay_in/a/3/0", "pay_in/a/4/0", "pay_back/nobody/1/0"}


async def test_reactions_follow_what_is_appended(tmp_path: Path) -> None:
    arrived = trio.Event()
    async with es.open_store(tmp_path / "store") as store, trio.open_nursery() as nursery:

        async def send(command: object, command_id: str, *, metadata: object = None) -> es.Committed | None:
            done = await execute(store, command, command_id)
            if command_id == "pay_back/nobody/1/0":
                arrived.set()
            return done

        nursery.start_soon(d.react, store, bank.app, send, Remembered())
        await open_accounts(send)
        with trio.fail_after(DEADLINE_SECONDS):
            await arrived.wait()
        nursery.cancel_scope.cancel()


def domain_of(
    *seen: list[Event], error: Exception | None = None, fails: int = 10**9, on_failure: OnFailure = "park"
) -> d.Domain:
    """Returns a domain whose reaction records its events, and raises the first `fails` times."""
    app, left = d.Domain(), [fails]

    @app.reacts(Opened, on_failure=on_failure)
    async def note(event: Opened, send: d.Send) -> None:
        seen[0].append(send.cause)
        if error is not None and left[0]:
            left[0] -= 1
            raise error

    return app


async def nowhere(command: object, command_id: str, *, metadata: object = None) -> es.Committed | None:
    raise AssertionError("nothing is sent")


async def test_a_retriable_error_is_retried(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    seen: list[Event] = []
    async with es.open_store(tmp_path / "store") as store:
        await store.append("a", new_events(Opened("Ada")), 0)
        checkpoint = Remembered()
        app = domain_of(seen, error=es.Overloaded("busy"), fails=20)
        await d.react(store, app, nowhere, checkpoint, until_caught_up=True)
    assert len(seen) == 21
    assert checkpoint.sequence == 1


@pytest.mark.parametrize("error", [ValueError("a bug"), d.Rejected("no")])
async def test_any_other_error_stops_before_the_event_if_that_is_declared(
    tmp_path: Path, error: Exception, autojump_clock: trio.testing.MockClock
) -> None:
    seen: list[Event] = []
    async with es.open_store(tmp_path / "store") as store:
        await store.append("a", new_events(Opened("Ada")), 0)
        checkpoint = Remembered()
        with pytest.raises(
            es.ProjectionFailed, match="reaction 'note' failed at sequence 1, aggregate 'a', version 1"
        ) as caught:
            await d.react(store, domain_of(seen, error=error, on_failure="stop"), nowhere, checkpoint, until_caught_up=True)
    assert caught.value.fields["error"] == type(error).__name__
    assert checkpoint.sequence == 0


async def test_events_of_one_aggregate_are_handled_in_order(tmp_path: Path) -> None:
    seen: list[Event] = []
    async with es.open_store(tmp_path / "store") as store:
        for number in range(50):
            await store.append(f"a-{number % 3}", new_events(Opened(str(number))), es.ANY)
        checkpoint = Remembered()
        assert await d.react(store, domain_of(seen), nowhere, checkpoint, events_max=20, until_caught_up=True) == 50
    assert sorted(event.sequence for event in seen) == list(range(1, 51))
    for aggregate_id in ("a-0", "a-1", "a-2"):
        versions = [event.version for event in seen if event.aggregate_id == aggregate_id]
        assert versions == sorted(versions)
    assert checkpoint.saved == sorted(checkpoint.saved)


async def test_a_domain_without_reactions_returns_at_once(tmp_path: Path) -> None:
    async with es.open_store(tmp_path / "store") as store:
        assert await d.react(store, d.Domain(), nowhere, Remembered()) == 0


def caused_by(aggregate_id: str, version: int) -> Event:
    return stored(Opened("Ada"), aggregate_id=aggregate_id, version=version)[0]


names = st.from_regex(r"[a-z_]{1,100}", fullmatch=True)
ids = st.text(st.characters(codec="utf-8"), min_size=1, max_size=60)
causes = st.tuples(names, ids, st.integers(1, 2**63 - 1), st.integers(0, 10**6))


@settings(suppress_health_check=[HealthCheck.too_slow])  # the first draw builds the tables of characters
@given(causes, causes)
def test_command_ids_are_short_enough_and_differ_if_their_causes_do(
    one: tuple[str, str, int, int], two: tuple[str, str, int, int]
) -> None:
    ids = [command_id_of(name, caused_by(aggregate_id, version), place) for name, aggregate_id, version, place in (one, two)]
    assert (ids[0] == ids[1]) == (one == two)
    assert all(0 < len(each.encode()) <= 255 for each in ids)


def test_an_aggregate_id_of_full_length_still_makes_a_command_id() -> None:
    ids = {command_id_of("r" * 100, caused_by("x" * 250 + last, 2**63 - 1), 10**6) for last in "ab"}
    assert len(ids) == 2
    assert all(len(each) <= 255 for each in ids)


def marks_at(sequence: int) -> ReactionMarks:
    return ReactionMarks("a store", 2, {"note": Checkpoint(sequence, "0" * 32)}, replayed={"note": "2026-11-20 ada: a test"})


def test_the_checkpoint_is_the_old_or_the_new_one_wherever_the_power_fails(tmp_path: Path) -> None:
    disk, path, seen = SimulatedDisk(seed=3), Path("/reactions.json"), set[int]()
    assert FileCheckpoint(path, disk).load() == ReactionMarks()
    FileCheckpoint(path, disk).save(marks_at(5))

    def look(crashed: SimulatedDisk) -> None:
        for mode in ("lost", "kept", "sectors"):
            seen.add(FileCheckpoint(path, crashed.crash(mode)).load().reactions["note"].sequence)  # type: ignore[arg-type]

    disk.at_each_operation(look)
    FileCheckpoint(path, disk).save(marks_at(9))
    assert seen <= {5, 9}
    assert 5 in seen
    assert FileCheckpoint(path, disk.crash("lost")).load() == marks_at(9)


NO_REACTIONS = '{"format":2,"store":null,"parked_after":0'


@pytest.mark.parametrize(
    "content",
    [
        "", "[]", "{}", '{"sequence":-1}', '{"sequence":true}', '{"sequence":"1"}', NO_REACTIONS + "}",
        NO_REACTIONS + ',"reactions":{"a":1}}',
    ],
)  # fmt: skip
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "reactions.json"
    path.write_text(content)
    with pytest.raises(es.Corrupt, match=r"reactions\.json: .*; replace it with its previous copy, reactions\.json\.previous"):
        FileCheckpoint(path).load()


def test_a_checkpoint_that_cannot_be_read_or_written_names_file_and_next_step(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(es.ReadFailed, match=r"/folder: the checkpoint .* cannot be read .*; check that it is a file"):
        FileCheckpoint(tmp_path / "folder").load()
    with pytest.raises(
        es.FolderRefused, match=r"/absent/reactions\.json: .* cannot be written .*; check that its folder exists"
    ):
        FileCheckpoint(tmp_path / "absent" / "reactions.json").save(marks_at(1))


def test_a_full_disk_keeps_the_old_checkpoint() -> None:
    disk, path = SimulatedDisk(seed=1), Path("/reactions.json")
    FileCheckpoint(path, disk).save(marks_at(5))
    disk.capacity_bytes = 0
    with pytest.raises(es.StorageFull, match=r"^/reactions\.json: no space for the checkpoint"):
        FileCheckpoint(path, disk).save(marks_at(6))
    assert FileCheckpoint(path, disk).load() == marks_at(5)


async def test_who_replayed_a_reaction_is_known_until_it_has_handled_something_since(tmp_path: Path) -> None:
    app, note = d.Domain(), "2026-11-20 ada: a test"

    @app.reacts(Opened)
    async def takes(event: Opened, send: d.Send) -> None: ...

    checkpoint = FileCheckpoint(tmp_path / "reactions.json")
    async with es.open_store(tmp_path / "store") as store:
        await store.append("a", [es.NewEvent("Happened")], 0)
        uuid = str((await store.stats())["store"])
        checkpoint.save(ReactionMarks(uuid, 0, {"takes": Checkpoint(1)}, replayed={"takes": note}))  # of an earlier version
        keeper = MarkKeeper(store, checkpoint)
        await keeper.load()
        completed = await keeper.mark_of(app.reactions["takes"])
        assert completed.identity is not None
        assert keeper._marks.replayed == {"takes": note}
        keeper.keep("takes", Checkpoint(2, "0" * 32))
        assert keeper._marks.replayed == {}
