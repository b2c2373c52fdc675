"""Options decide what is read of files and indexes: the rows that filters of Spark leave, and counts show what was not read."""

from __future__ import annotations

import datetime
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from eventstore.chunks.header import ChunkHeader
from eventstore.errors import InvalidArgument
from eventstore.model import Event, NewEvent
from eventstore.store.sorted.command_hash import hash_with, tag_hash
from pyspark_eventstore.files.read_metrics import ReadMetrics, sum_up
from tests.spark.loading import load, reader_of
from tests.spark.made import MadeStore, commits
from tests.store.sorted.test_index_without_tags import FIXTURE as WITHOUT_TAGS

BASE = 1_700_000_000_000_000
FILES = 8


@dataclass(frozen=True)
class Made:
    """A store whose files hold different aggregates, and everything in it."""

    path: Path
    uuid: str
    events: list[Event]
    sorted_files: int


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Sorted files alone: eight generations of aggregates, `acc-000` in all of them."""
    path = tmp_path_factory.mktemp("pushdown") / "shard"
    store = MadeStore(path, file_size_bytes=96 * 1024)
    number = 0
    while len(store.states()) <= FILES:
        generation = len(store.states())
        batch = commits(20, first=number, aggregates=7)
        renamed = [(f"g{generation}-{name}" if place % 10 else "acc-000", *rest) for place, (name, *rest) in enumerate(batch)]
        store.append_all(renamed)  # type: ignore[arg-type] # the same commits, under other ids
        number += 20
    store.sort()
    store.close()
    again = MadeStore(path)
    events = again.events()
    states = again.states()
    again.close()
    return Made(path, again.uuid, events, states.count("sorted"))


def ask(made: Made, tmp_path: Path, **options: object) -> tuple[list[int], ReadMetrics]:
    """Returns the sequences that a reader with these options reads, and what it counts."""
    reader = reader_of(made.path, report=tmp_path / "report", **options)
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    sequences = sorted(row["sequence"] for batch in batches for row in batch.select(["sequence"]).to_pylist())
    return sequences, sum_up(str(tmp_path / "report"))


def expected(made: Made, matches: Callable[[Event], bool]) -> list[int]:
    return [event.sequence for event in made.events if matches(event)]


def moment(micros: int, zone: str = "Z") -> str:
    hours = 0 if zone == "Z" else int(zone[:3])
    time = datetime.datetime(1970, 1, 1) + datetime.timedelta(hours=hours, microseconds=micros)
    return time.isoformat() + zone


def ongoing_rows(made: Made) -> int:
    """Rows of the ongoing file: it has no index, and every query decodes it."""
    store = MadeStore(made.path)
    first = store.opened.engine.files.headers[-1].first_sequence
    store.close()
    return sum(event.sequence >= first for event in made.events)


def test_without_a_condition_every_file_and_row_is_touched_once(made: Made, tmp_path: Path) -> None:
    sequences, metrics = ask(made, tmp_path)
    assert sequences == [event.sequence for event in made.events]
    assert metrics.files == made.sorted_files + 1
    assert metrics.rows_examined == metrics.rows_read == len(made.events)


def test_an_id_of_one_file_touches_that_file_and_its_own_rows(made: Made, tmp_path: Path) -> None:
    wanted = expected(made, lambda event: event.aggregate_id == "g3-acc-003")
    sequences, metrics = ask(made, tmp_path, aggregate_id="g3-acc-003")
    assert sequences == wanted
    assert wanted
    assert metrics.rows_read == len(wanted)
    assert metrics.rows_examined == len(wanted) + ongoing_rows(made)
    assert metrics.files <= 3  # at most the two that its generation spans, and the ongoing one


def test_an_id_that_is_in_every_file_touches_only_its_own_rows(made: Made, tmp_path: Path) -> None:
    wanted = expected(made, lambda event: event.aggregate_id == "acc-000")
    sequences, metrics = ask(made, tmp_path, aggregate_id="acc-000")
    assert sequences == wanted
    assert metrics.indexes == made.sorted_files
    assert metrics.rows_read == len(wanted)
    assert metrics.rows_examined < len(made.events) // 2


def test_an_id_that_is_nowhere_touches_no_row_of_a_sorted_file(made: Made, tmp_path: Path) -> None:
    sequences, metrics = ask(made, tmp_path, aggregate_id="g4-acc-0035")
    assert (sequences, metrics.rows_examined) == ([], ongoing_rows(made))


def test_several_ids(made: Made, tmp_path: Path) -> None:
    chosen = ["g2-acc-001", "g5-acc-004", "nobody"]
    wanted = expected(made, lambda event: event.aggregate_id in chosen)
    sequences, metrics = ask(made, tmp_path, aggregate_id=json.dumps(chosen))
    assert sequences == wanted
    assert metrics.rows_read == len(wanted)
    assert metrics.rows_examined == len(wanted) + ongoing_rows(made)
    only = ask(made, tmp_path / "2", aggregate_id=json.dumps(chosen), aggregate_prefix="g5-")[0]
    assert only == expected(made, lambda event: event.aggregate_id == "g5-acc-004")


@pytest.mark.parametrize("begin", ["g3-", "g3-acc-00", "acc-000", "zzz", ""])
def test_a_prefix_touches_only_its_rows(made: Made, tmp_path: Path, begin: str) -> None:
    wanted = expected(made, lambda event: event.aggregate_id.startswith(begin))
    sequences, metrics = ask(made, tmp_path, aggregate_prefix=begin)
    assert sequences == wanted
    assert metrics.rows_read == len(wanted)
    assert metrics.rows_examined <= len(wanted) + ongoing_rows(made)


def test_a_type_is_decided_by_the_index_before_any_payload_is_read(made: Made, tmp_path: Path) -> None:
    everything = ask(made, tmp_path / "all")[1]
    wanted = expected(made, lambda event: event.type == "Opened")
    sequences, metrics = ask(made, tmp_path, types="Opened")
    assert sequences == wanted
    assert metrics.rows_read == len(wanted) < len(made.events) // 4
    assert 0 < metrics.bytes_read < everything.bytes_read // 2
    several = expected(made, lambda event: event.type in ("Opened", "Zażółć"))
    for number, types in enumerate(("Opened, Zażółć", '["Opened", "Zażółć"]')):
        assert ask(made, tmp_path / str(number), types=types)[0] == several


def test_a_type_that_no_file_holds_examines_no_row_of_a_sorted_file(made: Made, tmp_path: Path) -> None:
    sequences, metrics = ask(made, tmp_path, types="Closed")
    assert (sequences, metrics.rows_examined) == ([], ongoing_rows(made))


@pytest.mark.parametrize(
    ("options", "matches"),
    [
        ({"startingVersion": 1, "endingVersion": 1}, lambda event: event.version == 1),
        ({"startingVersion": 3, "endingVersion": 4}, lambda event: 2 < event.version <= 4),
        ({"startingVersion": 1_000_000}, lambda event: False),
        (
            {"aggregate_id": "acc-000", "startingVersion": 4, "endingVersion": 9},
            lambda event: event.aggregate_id == "acc-000" and 4 <= event.version <= 9,
        ),
        ({"aggregate_id": "acc-000", "startingVersion": 1_000_000}, lambda event: False),
        ({"types": "Opened,Noted", "endingVersion": 2}, lambda e: e.type in ("Opened", "Noted") and e.version < 3),
    ],
)
def test_versions(made: Made, tmp_path: Path, options: dict[str, object], matches: Callable[[Event], bool]) -> None:
    wanted = expected(made, matches)
    sequences, metrics = ask(made, tmp_path, **options)
    assert sequences == wanted
    assert metrics.rows_read == len(wanted)


def test_a_range_of_sequences_touches_only_the_files_that_hold_it(made: Made, tmp_path: Path) -> None:
    bounds = {"after": json.dumps({made.uuid: 99}), "upto": json.dumps({made.uuid: 119})}
    sequences, metrics = ask(made, tmp_path, **bounds)
    assert sequences == list(range(100, 120))
    assert (metrics.files, metrics.rows_examined, metrics.rows_read) == (1, 20, 20)


@pytest.mark.parametrize("zone", ["+00:00", "+02:00"])
def test_a_range_of_time_with_both_ends_reads_the_payloads_of_its_own_rows_only(made: Made, tmp_path: Path, zone: str) -> None:
    low, high = BASE + 100_000_000, BASE + 140_000_000
    wanted = expected(made, lambda event: low <= event.timestamp <= high)
    assert [event.timestamp for event in made.events if event.sequence in (wanted[0], wanted[-1])] == [low, high]
    since, until = (moment(each, zone) for each in (low, high))
    sequences, metrics = ask(made, tmp_path, startingTimestamp=since, endingTimestamp=until)
    assert sequences == wanted
    assert metrics.rows_read == len(wanted)
    assert metrics.files < made.sorted_files // 2, "files without such an event stay closed, as do their other columns"


def test_columns_of_the_index_alone_leave_the_event_files_closed(spark: SparkSession, made: Made, tmp_path: Path) -> None:
    schema = "aggregate_id string, version bigint, type string"
    frame = load(spark, made.path, schema=schema, report=tmp_path / "report")
    rows = frame.collect()
    assert sorted(tuple(row) for row in rows) == sorted(
        (event.aggregate_id, event.version, event.type) for event in made.events
    )
    metrics = sum_up(str(tmp_path / "report"))
    assert (metrics.files, metrics.indexes) == (1, made.sorted_files)  # the ongoing file has no index


EVENTS = st.tuples(st.sampled_from(["a", "ab", "b", "ü-1"]), st.sampled_from(["T", "Zażółć", "x,y"]), st.integers(0, 5))
TEXTS = st.sampled_from(["a", "ab", "b", "ü-1", "c"])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    commits=st.lists(EVENTS, min_size=1, max_size=40),
    ids=st.none() | st.lists(TEXTS, min_size=1, max_size=3),
    begin=st.none() | st.sampled_from(["a", "ab", "ü", ""]),
    types=st.none() | st.lists(st.sampled_from(["T", "Zażółć", "x,y", "U"]), min_size=1, max_size=3),
    versions=st.tuples(st.none() | st.integers(1, 3), st.none() | st.integers(3, 9)),
    times=st.tuples(st.none() | st.integers(0, 3), st.none() | st.integers(3, 6)),
    sequences=st.tuples(st.none() | st.integers(0, 40), st.none() | st.integers(0, 40)),
    tags=st.none() | st.lists(st.sampled_from(["t:0", "t:1", "u", "x"]), min_size=1, max_size=2),
    sort=st.booleans(),
    permissive=st.booleans(),
)
def test_any_conditions_leave_what_the_same_filters_leave(
    tmp_path: Path, commits: list[tuple[str, str, int]], ids: list[str] | None, begin: str | None, types: list[str] | None,
    versions: tuple[int | None, int | None], times: tuple[int | None, int | None], sequences: tuple[int | None, int | None],
    tags: list[str] | None, sort: bool, permissive: bool,
) -> None:  # fmt: skip
    path = tmp_path / uuid4().hex
    store = MadeStore(path, file_size_bytes=4096)
    for number, (aggregate_id, event_type, second) in enumerate(commits):
        when = BASE + second * 1_000_000  # clocks may go back
        event = NewEvent(event_type, b"x" * 400, None, [f"t:{second % 3}", "u"][: number % 3])
        store.append(aggregate_id, event, command_id=f"c-{number}", when=when)
    if sort:
        store.sort()
    last = len(commits)
    after, upto = (None if each is None else min(each, last) for each in sequences)
    options = {
        "aggregate_id": None if ids is None else json.dumps(ids), "aggregate_prefix": begin,
        "types": None if types is None else json.dumps(types),
        "tags": None if tags is None else json.dumps(tags), "startingVersion": versions[0], "endingVersion": versions[1],
        "startingTimestamp": None if times[0] is None else moment(BASE + times[0] * 1_000_000),
        "endingTimestamp": None if times[1] is None else moment(BASE + times[1] * 1_000_000),
        "after": None if after is None else json.dumps({store.uuid: after}),
        "upto": None if upto is None else json.dumps({store.uuid: upto}),
        "mode": "permissive" if permissive else None,
    }  # fmt: skip
    events = store.events()
    store.close()
    reader = reader_of(path, **{name: value for name, value in options.items() if value is not None})
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    assert sorted(row["sequence"] for row in rows) == [
        event.sequence
        for event in events
        if (ids is None or event.aggregate_id in ids)
        and event.aggregate_id.startswith(begin or "")
        and (types is None or event.type in types)
        and set(tags or ()) <= set(event.tags)
        and (versions[0] or 1) <= event.version <= (versions[1] or last)
        and (times[0] or 0) <= (event.timestamp - BASE) // 1_000_000 <= (6 if times[1] is None else times[1])
        and (after or 0) < event.sequence <= (last if upto is None else upto)
    ]


def tagged(path: Path) -> MadeStore:
    """Files of events with the tag `common`, and between them some without; few events have `rare` as well. The last file is
    ongoing.
    """
    store = MadeStore(path, file_size_bytes=32 * 1024)
    number = 0
    for states, tags in ((2, ["common"]), (4, []), (6, ["common"])):
        while len(store.states()) < states:
            extra = ["rare"] if number == 0 or states == 6 else []
            store.append(f"acc-{number % 5}", NewEvent("T", b"x" * 900, None, [*tags, *extra]), command_id=f"c-{number}")
            number += 1
    store.sort()
    for last in range(3):
        store.append("acc-0", NewEvent("T", b""), command_id=f"l-{last}")
    assert [*set(store.states()[:-1]), store.states()[-1]] == ["sorted", "ongoing"]
    return store


@pytest.mark.parametrize("columns", ["sequence", "sequence,tags,data"])
def test_files_without_the_tags_stay_closed_and_other_records_are_not_read(tmp_path: Path, columns: str) -> None:
    store = tagged(tmp_path / "shard")
    events, sorted_files = store.events(), len(store.states()) - 1
    store.close()
    made = Made(store.path, store.uuid, events, sorted_files)
    first_ongoing = len(events) - ongoing_rows(made)
    for options, tags in (("common", {"common"}), ('["rare", "common"]', {"rare", "common"}), ("nobody", {"nobody"})):
        sequences, metrics = ask(made, tmp_path / options, tags=options, columns=columns)
        assert sequences == [event.sequence for event in events if tags <= set(event.tags)]
        holding = [
            header for header in headers(store.path)
            if any(header.first_sequence <= each <= header.last_sequence for each in sequences)
        ]  # fmt: skip
        assert metrics.files == len(holding) + 1, "the ongoing file has no index"
        assert metrics.rows_read == len(sequences)
        assert metrics.rows_examined == len([each for each in sequences if each <= first_ongoing]) + ongoing_rows(made)
    everything = ask(made, tmp_path / "all", columns="sequence,data")[1]
    some = ask(made, tmp_path / "some", columns="sequence,data", tags="common")[1]
    assert some.bytes_read < 0.7 * everything.bytes_read


def headers(path: Path) -> list[ChunkHeader]:
    """The headers of the sorted files."""
    store = MadeStore(path)
    found = [header for header in store.opened.engine.files.headers if header.sorted]
    store.close()
    return found


def test_a_tag_with_the_hash_of_another_is_not_mistaken_for_it(tmp_path: Path) -> None:
    store = MadeStore(tmp_path / "shard")
    number = 0
    while len(store.states()) < 2:
        store.append("acc", NewEvent("T", b"x" * 900, None, ["first"]), command_id=f"c-{number}")
        number += 1
    store.sort()
    hash_of = hash_with(store.opened.engine.files.index(1).header.command_key)
    seen: dict[int, str] = {}
    one = other = ""
    for candidate in map(str, range(2_000_000)):
        if (other := seen.setdefault(tag_hash(hash_of, candidate), candidate)) != candidate:
            one = candidate
            break
    assert one
    while len(store.states()) < 3:
        store.append("acc", NewEvent("T", b"x" * 900, None, [one, "both"]), command_id=f"c-{number}")
        number += 1
    store.sort()
    events = store.events()
    assert len(store.opened.engine.files.index(2).rows_with_tags([other])), "the hash alone finds them"
    store.close()
    made = Made(store.path, store.uuid, events, 2)
    for columns in ("sequence", "sequence,tags"):
        assert ask(made, tmp_path / f"{columns}-1", tags=other, columns=columns)[0] == []
        assert ask(made, tmp_path / f"{columns}-2", tags=f'["{other}", "both"]', columns=columns)[0] == []
        assert ask(made, tmp_path / f"{columns}-3", tags=one, columns=columns)[0] == expected(
            made, lambda event: one in event.tags
        )


def test_an_index_without_the_columns_of_tags_hides_no_event(tmp_path: Path) -> None:
    path = Path(shutil.copytree(WITHOUT_TAGS, tmp_path / "shard"))
    rows = [row for part in reader_of(path).partitions() for batch in reader_of(path).read(part) for row in batch.to_pylist()]
    made = Made(path, "", [], 2)
    for tags in (["course:c1"], ["course:c1", "student:s7"], ["course:c3"]):
        wanted = sorted(row["sequence"] for row in rows if set(tags) <= set(row["tags"]))
        assert ask(made, tmp_path / "-".join(tags), tags=json.dumps(tags))[0] == wanted


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("", "tags has 0 bytes"),
        ("[]", "expected a JSON array of texts"),
        ('["a", 1]', "expected a JSON array of texts"),
        (json.dumps([str(number) for number in range(33)]), "33 tags, the limit is 32"),
        ("a\nb", "control character"),
    ],
)
def test_what_is_no_tag_is_refused(tmp_path: Path, given: str, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        reader_of(tmp_path, tags=given)
