"""Documents of the broker that a newer program has written: this one writes again what it does not know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eventstore.broker.groups.offsets_document import OffsetsDocument
from eventstore.broker.retry_policy import RetryPolicy
from eventstore.broker.topics import Topics
from eventstore.chunks.documents import Tree, read_tree, write_document
from tests.simulated_disk import SimulatedDisk

PATH = Path("/data/document.json")
NEWER: Tree = {"of a newer program": {"n": [1]}}


def test_topics_keep_them() -> None:
    disk = SimulatedDisk(0)
    disk.make_folder(PATH.parent)
    Topics(disk, PATH).create("orders", 2)
    written: Any = read_tree(disk, PATH)
    write_document(disk, PATH, {**written, **NEWER, "topics": {"orders": {**written["topics"]["orders"], **NEWER}}})
    older = Topics(disk, PATH)
    older.load()
    older.create("bills", 1)
    older.add_queues("orders", 1)
    found: Any = read_tree(disk, PATH)
    assert (found["of a newer program"], found["next_id"]) == ({"n": [1]}, 3)
    assert found["topics"]["orders"] == {
        **NEWER,
        "id": 1,
        "next_queue": 3,
        "queues": {"0": "open", "1": "open", "2": "open"},
    }
    assert found["topics"]["bills"] == {"id": 2, "next_queue": 1, "queues": {"0": "open"}}


def test_offsets_keep_them_and_a_policy_that_is_replaced_does_not() -> None:
    disk = SimulatedDisk(0)
    disk.make_folder(PATH.parent)
    first = OffsetsDocument(disk, PATH)
    first.policies = {"kept": RetryPolicy((1.0,)), "replaced": RetryPolicy((2.0,))}
    first.write(first.tree())
    written: Any = read_tree(disk, PATH)
    policies = {group: {**policy, **NEWER} for group, policy in written["policies"].items()}
    write_document(disk, PATH, {**written, **NEWER, "policies": policies})
    older = OffsetsDocument(disk, PATH)
    older.load()
    older.begin()
    older.policies["replaced"] = RetryPolicy((3.0,))
    older.groups["g"] = {"orders": {0: 7}}
    older.write(older.tree())
    found: Any = read_tree(disk, PATH)
    assert (found["of a newer program"], found["starts"]) == ({"n": [1]}, 1)
    assert found["policies"]["kept"] == {**NEWER, "delays_ms": [1000], "attempts": None, "dead_letters": None}
    assert "of a newer program" not in found["policies"]["replaced"]
