"""Commits of several aggregates in the engine: all or none, found again by their command, refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from eventstore.chunks.header import FOOTER_BYTES, FOOTER_MAGIC
from eventstore.errors import CommandIdReused, Corrupt, InvalidArgument, UnsupportedVersion
from eventstore.model import ANY, EXISTS, Event, NewEvent
from eventstore.records.commit import decode, joint_place_of
from eventstore.records.event_filter import EventFilter
from eventstore.records.event_page import decode_page, settle
from eventstore.store.append import COMMITTED, CONFLICT, DUPLICATE, REFUSED
from tests.simulated_disk import SimulatedDisk
from tests.store.stepped import DATA, EVENTS, SMALL, Stepped, raw, together

A, B, C = NewEvent("A", b"a"), NewEvent("B", b"b"), NewEvent("C", b"c" * 40)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Stepped]:
    store = Stepped(SimulatedDisk(0), tmp_path / "lmdb")
    yield store
    store.abandon()


def reopened(store: Stepped) -> Stepped:
    store.close()
    return Stepped(store.disk, store.directory)


def names(events: list[Event]) -> list[tuple[str, int, int, str, bool]]:
    return [(each.aggregate_id, each.version, each.sequence, each.type, each.commit_continues) for each in events]


def test_all_aggregates_get_their_events_one_after_the_other(store: Stepped) -> None:
    store.append(raw("a", "c-0"))
    (outcome,) = store.append(together("c-1", ("a", 1, [A, B]), ("b", 0, [C]), ("c", ANY, [A])))
    assert outcome == (COMMITTED, ((3, 3), (1, 4), (1, 5)), 5)
    expected = [
        ("a", 1, 1, "Happened", False),
        ("a", 2, 2, "A", True),
        ("a", 3, 3, "B", True),
        ("b", 1, 4, "C", True),
        ("c", 1, 5, "A", False),
    ]
    assert names(store.read_all()) == expected
    assert names(store.read("a")) == [each for each in expected if each[0] == "a"]
    assert store.engine.version("b") == 1
    store.append(raw("b", "c-2", A, expected=1))
    after = reopened(store)
    assert names(after.read_all())[:5] == expected
    assert [after.engine.version(name) for name in "abc"] == [3, 2, 1]
    after.abandon()


def test_sorted_files_hold_the_same(store: Stepped) -> None:
    number = 0
    while not store.unsorted():
        number += 1
        store.append(together(f"c-{number}", *((f"a-{place}", ANY, [A, C]) for place in range(3))), raw(f"b-{number}", "x"))
    before = store.read_all(), [store.read(f"a-{place}") for place in range(3)]
    assert store.sort() == 1
    assert (store.read_all(), [store.read(f"a-{place}") for place in range(3)]) == before
    (again,) = store.append(together("c-1", *((f"a-{place}", ANY, [A, C]) for place in range(3))))
    assert again == (DUPLICATE, ((2, 2), (2, 4), (2, 6)), 6)
    assert reopened(store).read_all() == before[0]


def test_commits_that_a_split_may_part_are_counted(store: Stepped) -> None:
    figures = store.engine.appender
    store.append(raw("a", "c-0"), together("c-1", ("a", 1, [A])))
    assert (figures.joint_commits, figures.joint_commits_apart) == (0, 0)
    store.append(together("c-2", ("x{1}", 0, [A]), ("y{1}", 0, [A]), only_if=[("z{1}", 0)]))
    assert (figures.joint_commits, figures.joint_commits_apart) == (1, 0)
    store.append(together("c-3", ("x{1}", 1, [A]), ("b", 0, [A])), together("c-4", ("x{1}", 2, [A]), only_if=[("a", 2)]))
    assert (figures.joint_commits, figures.joint_commits_apart) == (3, 2)
    store.append(together("c-3", ("x{1}", 1, [A]), ("b", 0, [A])), together("c-5", ("x{1}", 9, [A]), ("b", 1, [A])))
    assert (figures.joint_commits, figures.joint_commits_apart) == (3, 2), "neither a repetition nor a conflict counts"


@pytest.mark.parametrize(
    ("writes", "only_if", "fails"),
    [
        ([("a", 2, [A]), ("b", 1, [A])], [], ("a", 2, 1)),
        ([("a", 1, [A]), ("b", EXISTS, [A])], [], ("b", EXISTS, 0)),
        ([("a", 1, [A]), ("b", 0, [A])], [("c", 1)], ("c", 1, 0)),
        ([("b", 0, [A])], [("a", 0)], ("a", 0, 1)),
    ],
)
def test_nothing_is_stored_if_one_condition_fails(
    store: Stepped, writes: list[object], only_if: list[object], fails: object
) -> None:
    store.append(raw("a", "c-0"))
    assert store.append(together("c-1", *writes, only_if=only_if)) == [(CONFLICT, fails, 0)]  # type: ignore[arg-type]
    assert len(store.read_all()) == 1


def test_conditions_see_what_is_on_its_way_to_the_disk(store: Stepped) -> None:
    outcomes = store.engine.append_batch(
        [
            raw("a", "c-0"),
            together("c-1", ("a", 1, [A]), ("b", 0, [A])),
            raw("b", "c-2", expected=1),
            raw("a", "c-3", expected=1),
        ]
    )
    assert [outcome[0] for outcome in outcomes] == [COMMITTED, COMMITTED, COMMITTED, CONFLICT]
    store.persist()
    assert [each.aggregate_id for each in store.read_all()] == ["a", "a", "b", "b"]


def test_a_repetition_returns_the_first_outcome_whatever_its_conditions_and_order(store: Stepped) -> None:
    (first,) = store.append(together("c-1", ("a", 0, [A]), ("b", 0, [B])))
    store.append(raw("a", "c-2"))
    (again,) = store.append(together("c-1", ("b", 0, [B]), ("a", 0, [A]), only_if=[("z", 7)]))
    assert first == (COMMITTED, ((1, 1), (1, 2)), 2)
    assert again == (DUPLICATE, ((1, 2), (1, 1)), 2)
    assert len(store.read_all()) == 3


def test_another_content_or_another_set_under_the_same_id_is_refused(store: Stepped) -> None:
    store.append(together("c-1", ("a", 0, [A]), ("b", 0, [B])), raw("z", "c-2", A))
    for commit in (
        together("c-1", ("a", 0, [A]), ("b", 0, [A])),  # other events
        together("c-1", ("a", 0, [A]), ("b", 0, [B]), ("c", 0, [C])),  # one more
        together("c-1", ("a", 0, [A]), ("c", 0, [B])),  # another one
        together("c-1", ("a", 0, [A])),  # alone
        raw("a", "c-1", A),  # as an append
        together("c-2", ("z", 0, [A]), ("y", 0, [A])),  # an append's
    ):
        ((status, error, _),) = store.append(commit)
        assert status == REFUSED
        assert isinstance(error, CommandIdReused), commit
    assert [each.aggregate_id for each in store.read_all()] == ["a", "b", "z"]


def test_what_was_imported_aggregate_by_aggregate_is_a_repetition(store: Stepped) -> None:
    store.append(raw("a", "c-1", A), raw("b", "c-1", B))
    assert store.append(together("c-1", ("b", 7, [B]), ("a", 7, [A]))) == [(DUPLICATE, ((1, 2), (1, 1)), 2)]
    ((status, error, _),) = store.append(together("c-1", ("a", 1, [A]), ("b", 1, [A])))
    assert (status, type(error)) == (REFUSED, CommandIdReused)


def test_one_aggregate_alone_is_an_append(store: Stepped) -> None:
    (first,) = store.append(together("c-1", ("a", 0, [A]), only_if=[("b", 0)]))
    assert first == (COMMITTED, ((1, 1),), 1)
    assert store.append(raw("a", "c-1", A)) == [(DUPLICATE, 1, 1)]


def test_bad_commits_are_refused_by_field(store: Stepped) -> None:
    many = [(f"a-{place}", ANY, [A]) for place in range(1001)]
    big = [(f"a-{place}", ANY, [NewEvent("A", bytes(4_000_000))]) for place in range(5)]
    for commit, field in (
        (together("c-1"), "writes"),
        (together("c-1", *many), "writes"),
        (together("c-1", *many[:1], only_if=[(f"b-{place}", 0) for place in range(1001)]), "only_if"),
        (together("c-1", ("a", 0, [A]), ("a", 0, [B])), "aggregate_id"),
        (together("c-1", ("a", 0, [A]), only_if=[("a", 0)]), "aggregate_id"),
        (together("c-1", ("", 0, [A]), ("b", 0, [A])), "aggregate_id"),
        (together("c-1", ("a", 0, [A]), only_if=[("x" * 256, 0)]), "aggregate_id"),
        (together("", ("a", 0, [A]), ("b", 0, [A])), "command_id"),
        (together("c-1", ("$a", 0, [A]), ("b", 0, [A])), "aggregate_id"),
        (together("c-1", ("a", -1, [A]), ("b", 0, [A])), "expected_version"),
        (together("c-1", *big), "commit"),
        (together("c-1", ("a", 0, [A]), ("b", 0, [A]), when=2**62), "timestamp"),
    ):
        ((status, error, _),) = store.append(commit)
        assert status == REFUSED
        assert isinstance(error, InvalidArgument)
        assert error.fields["field"] == field
    assert store.read_all() == []


def test_a_commit_larger_than_a_file_gets_a_file_of_its_own(store: Stepped) -> None:
    store.append(raw("a", "c-0"))
    store.append(together("c-1", *((f"b-{place}", 0, [NewEvent("Big", bytes(4000))]) for place in range(5))))
    store.append(raw("a", "c-2"))
    assert [header.first_sequence for header in store.engine.files.headers] == [1, 2, 7]


def test_a_store_of_format_1_refuses_them_until_it_is_upgraded(tmp_path: Path) -> None:
    disk = SimulatedDisk(0)
    Stepped(disk, tmp_path / "lmdb").close()
    disk.replace(DATA / "store.json", disk.content(DATA / "store.json").replace(b'"format": 2', b'"format": 1'))
    store = Stepped(disk, tmp_path / "lmdb")
    store.append(raw("a", "c-0"))
    ((status, error, _),) = store.append(together("c-1", ("a", 1, [A]), ("b", 0, [A])))
    assert status == REFUSED
    assert isinstance(error, UnsupportedVersion)
    assert "--upgrade-format" in str(error)
    assert store.append(together("c-1", ("a", 1, [A]))) == [(COMMITTED, ((2, 2),), 2)]
    store.close()
    upgraded = Stepped(disk, tmp_path / "lmdb", replace(SMALL, upgrade_format=True))
    assert upgraded.append(together("c-2", ("a", 2, [A]), ("b", 0, [A])))[0][0] == COMMITTED
    assert [header.format for header in upgraded.engine.files.headers] == [1, 2]
    upgraded.close()
    last = Stepped(disk, tmp_path / "lmdb")
    assert last.append(together("c-2", ("a", 2, [A]), ("b", 0, [A])))[0][0] == DUPLICATE
    last.abandon()


@pytest.mark.parametrize("sorted_first", [False, True])
@pytest.mark.parametrize("types", [None, {"A"}, {"B"}, {"C"}, {"A", "C"}])
def test_a_page_that_ends_within_a_commit_is_followed_by_more_of_it(
    store: Stepped, types: set[str] | None, sorted_first: bool
) -> None:
    number = 0
    while number < 3 or not store.unsorted():
        number += 1
        store.append(together(f"c-{number}", ("a", ANY, [A]), ("b", ANY, [C, B]), ("c", ANY, [A])), raw("d", f"d-{number}", C))
    if sorted_first:
        store.sort()
    wanted = EventFilter(types=None if types is None else frozenset(types))
    for page_bytes, events_max in ((1, None), (1 << 20, 1), (1 << 20, 2), (300, 3)):
        after, pages, found = 0, list[list[Event]](), list[Event]()
        while after < store.engine.visible_sequence:
            page = store.engine.scan(after, wanted, page_bytes, events_max)
            pages.append([each for each in decode_page(page.records) if each.sequence > after and wanted.matches(each)])
            settle(pages[-1], page.next)
            after = page.next
        for events, following in zip(pages, [*pages[1:], []], strict=True):
            assert not events or not events[-1].commit_continues or following[0].command_id == events[-1].command_id
            found += events
        assert [each.sequence for each in found] == [each.sequence for each in store.read_all(0, wanted)]


FIRST = EVENTS / "0000000001.events"


def without_the_rest(store: Stepped, following: bytes) -> SimulatedDisk:
    """Returns the disk of a store whose last commit lost all aggregates but the first, with these bytes in their place."""
    store.append(raw("a", "c-0"))
    before = store.engine.front.end
    store.append(together("c-1", ("a", 1, [A]), ("b", 0, [B]), ("c", 0, [C])))
    store.abandon()
    assert isinstance(store.disk, SimulatedDisk)
    disk = store.disk.crash("kept")
    content = disk.content(FIRST)
    first = decode(content, before)
    assert first.joint is not None
    assert first.joint[:4] == (3, 0, 3, 0)
    end = before + first.length
    assert joint_place_of(content, end) == (3, 1, 3, 1, first.joint.digest)
    disk.replace(FIRST, content[:end] + (following or bytes(len(content) - end)))
    return disk


def test_a_recovery_goes_back_to_the_beginning_of_a_commit_that_is_not_whole(store: Stepped) -> None:
    disk = without_the_rest(store, b"")
    again = Stepped(disk, store.directory)
    assert [each.aggregate_id for each in again.read_all()] == ["a"]
    assert again.opened.report.torn_bytes > 0
    assert again.opened.report.torn_copy is not None
    assert again.engine.version("a") == 1
    assert again.append(together("c-1", ("a", 1, [A]), ("b", 0, [B]), ("c", 0, [C])))[0][0] == COMMITTED
    assert [each.aggregate_id for each in again.read_all()] == ["a", "a", "b", "c"]
    again.abandon()


def test_it_is_rot_if_the_commit_was_durable(store: Stepped) -> None:
    content = FOOTER_MAGIC + bytes(FOOTER_BYTES - len(FOOTER_MAGIC))
    disk = without_the_rest(store, content)
    with pytest.raises(Corrupt, match="miss others that were written with them"):
        Stepped(disk, store.directory)
