"""A part that is new says where its followers continue; what was made of another store does not count."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

from eventstore.domain.reactions.checkpoint import FileCheckpoint, ReactionMarks
from eventstore.following.checkpoint import Checkpoint, Origin
from eventstore.following.parts import Part, _origins
from eventstore.model import VERSION_MAX
from eventstore.records.cluster_map import ClusterMap, Shard, even_slots
from eventstore.records.splits import Split
from eventstore.server.work.shard_reactions import inherit

STORES = [str(uuid.UUID(int=number + 1)) for number in range(4)]


def known(*splits: Split, shards: int) -> ClusterMap:
    made = (Shard(number, uuid.UUID(STORES[number]).bytes, slots) for number, slots in enumerate(even_slots(shards)))
    return ClusterMap(b"c" * 16, 1, 1 + len(splits), tuple(made), splits)


def parts_of(*splits: Split, shards: int) -> list[Part[object]]:  # type: ignore[type-var] # nobody follows them
    origins = _origins(known(*splits, shards=shards))
    return [Part(number, None, STORES[number], origin) for number, origin in origins.items()]  # type: ignore[type-var]


def test_a_part_comes_after_the_one_whose_events_it_begins_with() -> None:
    whole = Origin(None, VERSION_MAX)
    assert list(_origins(known(Split(2, 0, 2, 50), Split(3, 2, 1, 70), shards=3)).items()) == [
        (0, whole), (2, Origin(0, 50)), (1, Origin(2, 70)),
    ]  # fmt: skip
    assert _origins(known(shards=2)) == {0: None, 1: None}, "neither was the whole log"
    assert _origins(known(Split(2, 0, 2, 50), shards=3)) == {0: None, 1: None, 2: Origin(0, 50)}


def test_new_parts_begin_where_the_one_stands_whose_events_they_have(tmp_path: Path) -> None:
    checkpoint = tmp_path / "reactions.json"
    marks = ReactionMarks(STORES[0], 20, {"ahead": Checkpoint(60, "a" * 32), "behind": Checkpoint(40, "b" * 32)})
    FileCheckpoint(checkpoint).save(marks)
    inherit(checkpoint, [], parts_of(Split(2, 0, 1, 50), Split(3, 1, 2, 30), shards=3))

    def found(number: int) -> ReactionMarks:
        return FileCheckpoint(tmp_path / f"reactions-{number}.json").load()

    assert found(0) == marks
    assert found(1) == ReactionMarks(STORES[1], 20, {"ahead": Checkpoint(50), "behind": Checkpoint(40, "b" * 32)})
    assert found(2) == ReactionMarks(STORES[2], 20, {"ahead": Checkpoint(30), "behind": Checkpoint(30)})
    FileCheckpoint(tmp_path / "reactions-1.json").save(ReactionMarks(STORES[1], 20, {"ahead": Checkpoint(70, "c" * 32)}))
    inherit(checkpoint, [], parts_of(Split(2, 0, 1, 50), Split(3, 1, 2, 30), Split(4, 1, 3, 65), shards=4))
    assert (found(2).reactions["ahead"], found(3).reactions["ahead"]) == (Checkpoint(30), Checkpoint(65))


def test_a_checkpoint_of_another_store_or_of_no_part_is_not_taken(tmp_path: Path) -> None:
    checkpoint = tmp_path / "reactions.json"
    FileCheckpoint(checkpoint).save(ReactionMarks("another", 0, {"note": Checkpoint(40, "b" * 32)}))
    inherit(checkpoint, [], parts_of(Split(2, 0, 1, 50), shards=2))
    checkpoint.write_text(json.dumps({"sequence": 40}))  # as earlier versions wrote it: of a store that it does not name
    inherit(checkpoint, [], parts_of(shards=2))
    assert list(tmp_path.glob("reactions-*.json")) == []


def test_the_only_mark_of_an_earlier_version_is_inherited_by_each_reaction(tmp_path: Path) -> None:
    checkpoint = tmp_path / "reactions.json"
    checkpoint.write_text(json.dumps({"sequence": 40}))
    inherit(checkpoint, ["note", "ship"], parts_of(Split(2, 0, 1, 30), shards=2))
    loaded = [FileCheckpoint(tmp_path / f"reactions-{number}.json").load().reactions for number in (0, 1)]
    assert loaded == [dict.fromkeys(("note", "ship"), Checkpoint(sequence)) for sequence in (40, 30)]
