"""All targets, SQLite and a real PostgreSQL, under the same tests."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar
from uuid import UUID

import pytest

import eventstore as es
import eventstore.domain as d
from eventstore.domain.projections.advance import advance
from eventstore.domain.projections.targets.base import ParkedKey, TableCheckpoint
from eventstore.model import Event
from tests.domain import postgresql
from tests.domain.projections.conftest import Place


class Counting(d.Projection[Any]):
    """Counts the events of an aggregate; an event `Gone` deletes its row."""

    name = "counting"
    columns: ClassVar = {"events": int, "last": str}

    def initial(self) -> dict[str, Any]:
        return {"events": 0, "last": ""}

    def apply(self, state: dict[str, Any], event: Event) -> dict[str, Any] | None:
        if event.type == "Gone":
            return None
        return {"events": state["events"] + 1, "last": event.type}

    def row(self, key: str, state: dict[str, Any]) -> dict[str, object]:
        return dict(state)


class Other(Counting):
    """The same projection under another name."""

    name = "other"


def happened(sequence: int, type: str = "Happened", aggregate_id: str = "a") -> Event:
    return tuple.__new__(Event, (aggregate_id, sequence, type, b"{}", None, f"c-{sequence}", 0, sequence, 1))


ROWS = "SELECT key, events, last FROM counting ORDER BY key"
CHECKPOINT = "SELECT projection, sequence FROM eventstore_checkpoints"


def test_rows_states_and_checkpoint_are_kept(place: Place) -> None:
    target, projection = place.target(), Counting()
    assert target.open(projection) == (0, None)
    assert advance(projection, target, [happened(1), happened(2, aggregate_id="b"), happened(3)], 0, TableCheckpoint(3))[0] == 2
    assert advance(projection, target, [happened(4, "Changed")], 3, TableCheckpoint(4))[0] == 1
    target.close()
    assert place.query(ROWS) == [("a", 3, "Changed"), ("b", 1, "Happened")]
    assert place.query(CHECKPOINT) == [("counting", 4)]
    again = place.target()
    assert again.open(projection).sequence == 4
    assert again.read(["b", "nobody", "a"]) == {"a": '{"events":3,"last":"Changed"}', "b": '{"events":1,"last":"Happened"}'}
    again.close()


def test_a_table_records_its_store(place: Place) -> None:
    target, projection = place.target(), Counting()
    target.open(projection)
    advance(projection, target, [happened(1)], 0, TableCheckpoint(1))
    target.close()
    for store in ("one", "one", None):
        assert target.open(projection, store=store).sequence == 1
        target.close()
    with pytest.raises(es.InvalidArgument, match="table 'counting' was made from store one, but this is store two"):
        target.open(projection, store="two")
    target.close()
    assert place.query("SELECT sequence, store FROM eventstore_checkpoints") == [(1, "one")]


def test_without_a_checkpoint_a_target_that_must_not_begin_is_left_unchanged(place: Place) -> None:
    target = place.target()
    with pytest.raises(es.DomainRefused, match="projection 'counting' has no checkpoint"):
        target.open(Counting(), begins=False)
    target.close()
    assert not place.tables()
    target, projection = place.target(), Counting()
    target.open(projection)
    advance(projection, target, [happened(1)], 0, TableCheckpoint(1))
    target.close()
    assert target.open(projection, begins=False).sequence == 1
    target.close()
    other = place.target()
    with pytest.raises(es.DomainRefused, match="projection 'other' has no checkpoint"):
        other.open(Other(), begins=False)
    other.close()
    assert place.tables() == ["counting", "eventstore_checkpoints"]
    assert place.query(CHECKPOINT) == [("counting", 1)]


def test_no_state_deletes_the_row_and_the_key_starts_again(place: Place) -> None:
    target, projection = place.target(), Counting()
    target.open(projection)
    advance(projection, target, [happened(1), happened(2)], 0, TableCheckpoint(2))
    advance(projection, target, [happened(3, "Gone"), happened(4, "Gone", "never")], 2, TableCheckpoint(4))
    assert place.query(ROWS) == []
    advance(projection, target, [happened(5, "Gone"), happened(6, "Again")], 4, TableCheckpoint(6))
    assert place.query(ROWS) == [("a", 1, "Again")]
    target.close()


def test_a_second_projector_is_fenced_and_changes_nothing(place: Place) -> None:
    first, second, projection = place.target(), place.target(), Counting()
    assert first.open(projection) == second.open(projection) == (0, None)
    advance(projection, first, [happened(1)], 0, TableCheckpoint(1))
    with pytest.raises(es.Fenced, match="checkpoint of projection 'counting' is no longer 0") as caught:
        advance(projection, second, [happened(1), happened(2)], 0, TableCheckpoint(2))
    assert caught.value.fields == {"name": "counting", "checkpoint": 0}
    assert place.query(ROWS) == [("a", 1, "Happened")]
    assert place.query(CHECKPOINT) == [("counting", 1)]
    advance(projection, first, [happened(2)], 1, TableCheckpoint(2))
    first.close()
    second.close()


def test_a_batch_without_events_moves_the_checkpoint(place: Place) -> None:
    target, projection = place.target(), Counting()
    target.open(projection)
    assert advance(projection, target, [], 0, TableCheckpoint(17))[0] == 0
    target.close()
    assert place.query(CHECKPOINT) == [("counting", 17)]


def test_more_keys_than_one_query_allows(place: Place) -> None:
    target, projection = place.target(), Counting()
    target.open(projection)
    events = [happened(number, aggregate_id=f"a-{number:05}") for number in range(1, 2_002)]
    advance(projection, target, events, 0, TableCheckpoint(2_001))
    advance(projection, target, events, 2_001, TableCheckpoint(2_002))
    assert place.query("SELECT count(*), sum(events) FROM counting") == [(2_001, 4_002)]
    target.close()


class Failing(Counting):
    def row(self, key: str, state: dict[str, Any]) -> dict[str, object]:
        return {"events": "many", "last": "x"}


def test_a_refused_row_changes_nothing(place: Place) -> None:
    target = place.target()
    target.open(Counting())
    advance(Counting(), target, [happened(1)], 0, TableCheckpoint(1))
    with pytest.raises(
        es.ProjectionFailed, match=r"'counting' failed at sequence 3, aggregate 'a', version 3.*column 'events'"
    ):
        advance(Failing(), target, [happened(2), happened(3)], 1, TableCheckpoint(3))
    assert place.query(ROWS) == [("a", 1, "Happened")]
    assert place.query(CHECKPOINT) == [("counting", 1)]
    advance(Counting(), target, [happened(2)], 1, TableCheckpoint(2))
    target.close()


class Parking(Counting):
    on_failure = "park"


def test_parked_keys_are_kept_with_the_batch_and_forgotten_with_the_table(place: Place) -> None:
    target, first, second = place.target(), ParkedKey("a", 1, "it's {bad}"), ParkedKey('"b', 2, "ü")
    target.open(Parking())
    assert target.parked(None) == {}
    target.write([], [], 0, TableCheckpoint(2), [first, second])
    with pytest.raises(es.Fenced):
        target.write([], [], 1, TableCheckpoint(3), [ParkedKey("c", 3, "")])
    assert target.parked(None) == {"a": first, '"b': second}
    assert target.parked(["c", '"b']) == {'"b': second}
    again = first._replace(sequence=2)
    target.write([], [], 2, TableCheckpoint(2), [again], ['"b'])
    target.write([], [], 2, TableCheckpoint(3))
    target.close()
    target.open(Parking())
    assert target.parked(None) == {"a": again}
    target.close()
    place.change("UPDATE eventstore_checkpoints SET generation = 7")
    target.open(Counting())
    assert target.parked(None) == {}
    target.close()


class Wider(Counting):
    columns: ClassVar = {"events": int, "last": str, "first": str}


def test_a_table_with_other_columns_is_refused_and_kept(place: Place) -> None:
    target = place.target()
    target.open(Counting())
    advance(Counting(), target, [happened(1)], 0, TableCheckpoint(1))
    target.close()
    other = place.target()
    with pytest.raises(es.DomainRefused, match=r"'counting' has the columns key .*the projection declares .*first"):
        other.open(Wider())
    other.close()
    assert place.query(ROWS) == [("a", 1, "Happened")]


def test_a_table_that_was_built_anew_fences_a_projector_at_the_same_sequence(place: Place) -> None:
    """Its row of the checkpoint was deleted, or a rebuild gave it another generation."""
    for make_anew in ("DELETE FROM eventstore_checkpoints", "UPDATE eventstore_checkpoints SET generation = 1, sequence = 0"):
        old, new, projection = place.target(), place.target(), Counting()
        old.open(projection)
        advance(projection, old, [happened(1, "Old")], 0, TableCheckpoint(1))
        place.change(make_anew)
        place.change("DELETE FROM counting")
        new.open(projection)
        advance(projection, new, [happened(1, "New")], 0, TableCheckpoint(1))
        with pytest.raises(es.Fenced, match="or its table was rebuilt"):
            advance(projection, old, [happened(2)], 1, TableCheckpoint(2))
        assert place.query(ROWS) == [("a", 1, "New")]
        advance(projection, new, [happened(2, "New")], 1, TableCheckpoint(2))
        old.close()
        new.close()
        place.change("DELETE FROM counting")
        place.change("DELETE FROM eventstore_checkpoints")


class Second(Counting):
    version = 2


def test_a_table_of_another_version_of_the_projection_is_refused(place: Place) -> None:
    target = place.target()
    target.open(Second())  # nothing was folded yet: any version may begin
    target.close()
    target.open(Counting())
    advance(Counting(), target, [happened(1)], 0, TableCheckpoint(1))
    target.close()
    with pytest.raises(es.DomainRefused, match="'counting' was made by version 1 of the projection, but the code declares ver"):
        target.open(Second())
    target.close()
    assert target.open(Counting()).sequence == 1
    target.close()


def test_checkpoints_of_the_version_before_get_their_new_columns(place: Place) -> None:
    target, projection = place.target(), Counting()
    target.open(projection)
    advance(projection, target, [happened(1)], 0, TableCheckpoint(1, "ab"))
    target.close()
    for column in ("identity", "generation", "version"):
        place.change(f"ALTER TABLE eventstore_checkpoints DROP COLUMN {column}")
    assert target.open(projection) == (1, None)
    advance(projection, target, [happened(2)], 1, TableCheckpoint(2, "cd"))
    target.close()
    assert target.open(projection) == (2, "cd")
    target.close()
    with pytest.raises(es.DomainRefused, match="made by version 1"):
        target.open(Second())
    target.close()


def test_a_checkpoint_without_its_table_is_refused(place: Place) -> None:
    target, projection = place.target(), Counting()
    target.open(projection)
    advance(projection, target, [happened(1)], 0, TableCheckpoint(1))
    target.close()
    place.change("DROP TABLE counting")
    with pytest.raises(es.DomainRefused, match="table 'counting' is missing, but its checkpoint is at sequence 1; delete"):
        target.open(projection)
    target.close()
    assert place.tables() == ["eventstore_checkpoints"]


class AllTypes(d.Projection[Any]):
    name = "all_types"
    columns: ClassVar = {
        "a_str": str, "an_int": int, "a_float": float, "a_bool": bool, "a_bytes": bytes,
        "a_time": datetime, "a_date": date, "a_decimal": Decimal, "a_uuid": UUID,
        "a_price": d.DecimalColumn(30, 20),
    }  # fmt: skip
    rows: ClassVar[dict[str, dict[str, object]]] = {
        "some": {
            "a_str": 'quo"ted\\ , {x} ü', "an_int": -(2**63), "a_float": 1.5, "a_bool": True, "a_bytes": b"\x00\xff",
            "a_time": datetime(2030, 1, 2, 3, 4, 5, 6, tzinfo=timezone(timedelta(hours=2))), "a_date": date(2030, 1, 2),
            "a_decimal": Decimal("1.50"), "a_uuid": UUID(int=7), "a_price": Decimal("2.5"),
        },
        "none": dict.fromkeys(columns),
    }  # fmt: skip

    def apply(self, state: Any, event: Event) -> Any:
        return 1

    def row(self, key: str, state: Any) -> dict[str, object]:
        return self.rows[key]


def test_every_type_of_column_is_kept(place: Place) -> None:
    target, projection = place.target(), AllTypes()
    target.open(projection)
    advance(projection, target, [happened(1, aggregate_id="some"), happened(2, aggregate_id="none")], 0, TableCheckpoint(2))
    target.close()
    none, some = place.query(f"SELECT {', '.join(AllTypes.columns)} FROM all_types ORDER BY key")
    assert none == (None,) * len(AllTypes.columns)
    wanted = AllTypes.rows["some"]
    if isinstance(some[5], str):
        texts = {
            "a_time": "2030-01-02T01:04:05.000006+00:00",
            "a_date": "2030-01-02",
            "a_decimal": "1.50",
            "a_uuid": str(UUID(int=7)),
            "a_price": "2.50000000000000000000",
        }
        wanted = {**wanted, **texts}
    assert some == tuple(wanted.values())
    if not isinstance(some[5], str):
        assert [str(some[7]), str(some[9])] == ["1.50", "2.50000000000000000000"]
    else:
        assert some[5].endswith("+00:00"), f"in {UTC}"


def test_keys_of_any_text_are_kept(place: Place) -> None:
    target, projection = place.target(), Counting()
    target.open(projection)
    keys = ["'; DROP TABLE counting; --", "{a,b}", 'x"y', "\\", "NULL", "ü\U0001f600", " "]
    advance(projection, target, [happened(place, aggregate_id=key) for place, key in enumerate(keys, 1)], 0, TableCheckpoint(9))
    assert set(target.read(keys)) == set(keys)
    target.close()


def test_several_projections_share_a_database(place: Place) -> None:
    counting, types = place.target(), place.target()
    counting.open(Counting())
    types.open(AllTypes())
    advance(Counting(), counting, [happened(5)], 0, TableCheckpoint(5))
    assert sorted(place.query(CHECKPOINT)) == [("all_types", 0), ("counting", 5)]
    counting.close()
    types.close()


@pytest.mark.parametrize("place", ["mysql://x", "sqlite:", "", "rows.db"])
def test_an_unknown_kind_of_target_is_refused(place: str) -> None:
    with pytest.raises(es.DomainRefused, match=r"must be sqlite:FILE or postgresql://"):
        d.target_at(place)


def test_a_file_with_a_host_is_refused() -> None:
    with pytest.raises(es.DomainRefused, match=r"names a host, but SQLite uses a file; write sqlite:rows.db"):
        d.target_at("sqlite://rows.db")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("absent/rows.db", "; folder .*/absent does not exist: create it$"),
        ("", "; it is a folder: name a file$"),
        ("notes.txt", "; name an SQLite file, or one that does not exist yet$"),
    ],
)
def test_a_file_that_cannot_be_used_names_the_next_step(name: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("these are no rows " * 20)
    with pytest.raises(es.ProjectionFailed, match="projection 'counting' cannot use .*" + why):
        d.SQLiteTarget(tmp_path / name).open(Counting())


def test_a_target_that_cannot_be_reached_is_named(tmp_path: Path) -> None:
    with pytest.raises(es.ProjectionFailed, match=r"projection 'counting' cannot use .*absent"):
        d.target_at(f"sqlite:{tmp_path}/absent/rows.db").open(Counting())
    reason = postgresql.why_not()
    if reason is not None:
        pytest.skip(reason)
    with pytest.raises(es.ProjectionFailed, match="projection 'counting' cannot use PostgreSQL: "):
        d.target_at("postgresql://nobody@127.0.0.1:1/none").open(Counting())
