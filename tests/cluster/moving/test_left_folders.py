"""The folder of a replica that moved away: put away whole, deleted late, and never while the registry names it."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from eventstore.chunks.files import OsFiles
from eventstore.records.cluster_map import ALL_SLOTS
from eventstore_cluster.nodes.left_folders import LeftFolders
from eventstore_cluster.registry.registry import RegistryEntry, RegistrySnapshot
from eventstore_cluster.registry.replicated_keys import ShardKey
from eventstore_cluster.replica.registry_state import Seat, ShardState

OTHERS = ShardState(4, frozenset({Seat("n2", "b"), Seat("n3", "c")}), ("n2", "n3"), 2)


def seen(state: ShardState) -> RegistrySnapshot:
    return RegistrySnapshot(9, {"shard/3": RegistryEntry(ShardKey(uuid.uuid4(), ALL_SLOTS, state).value(), 9)})


def replica(data: Path) -> LeftFolders:
    (data / "shard-3" / "events").mkdir(parents=True)
    (data / "shard-3" / "events" / "1.events").write_bytes(b"x")
    (data / "shard-3" / "replica.json").write_text(json.dumps({"incarnations": ["new", "a"]}))
    return LeftFolders(data, "n1")


class Crashing(OsFiles):
    """Ends at the operation of this number."""

    def __init__(self, crashes_at: int) -> None:
        self.left = crashes_at

    def _step(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt

    def rename(self, source: Path, target: Path) -> None:
        self._step()
        super().rename(source, target)

    def sync_folder(self, path: Path) -> None:
        self._step()
        super().sync_folder(path)


@pytest.mark.parametrize("at", range(5))
def test_a_crash_while_a_folder_is_put_away_leaves_all_of_it_in_one_of_two_places(tmp_path: Path, at: int) -> None:
    replica(tmp_path)
    crashed = LeftFolders(tmp_path, "n1", Crashing(at))
    try:
        crashed.put_away(3)
    except KeyboardInterrupt:
        pass
    else:
        assert at == 4
    again = LeftFolders(tmp_path, "n1")
    if again.replicas() == [3]:
        again.put_away(3)
    assert again.replicas() == []
    (left,) = again.left()
    assert left.shard == 3
    assert (left.path / "events" / "1.events").read_bytes() == b"x"


def test_what_a_crash_leaves_of_a_deletion_is_deleted_next_time(tmp_path: Path) -> None:
    folders = replica(tmp_path)
    path = folders.put_away(3)
    path.rename(path.with_name(path.name + ".deleting"))
    (left,) = folders.left()
    assert folders.may_be_deleted(left, seen(OTHERS))
    folders.delete(left)
    assert list(folders.left()) == []


def test_a_folder_is_left_alone_while_the_registry_names_the_node_or_does_not_know_the_shard(tmp_path: Path) -> None:
    folders = replica(tmp_path)
    assert not folders.is_named(3, seen(OTHERS))
    assert folders.is_named(3, seen(replace(OTHERS, replicas=("n2", "n3", "n1"))))
    assert folders.is_named(3, seen(replace(OTHERS, in_sync=OTHERS.in_sync | {Seat("n1", "a")})))
    assert folders.is_named(3, RegistrySnapshot(9, {}))


def test_a_folder_is_kept_whose_incarnation_is_in_sync_or_whose_shard_has_too_few_replicas(tmp_path: Path) -> None:
    folders = replica(tmp_path)
    folders.put_away(3)
    (left,) = folders.left()
    assert folders.may_be_deleted(left, seen(OTHERS))
    assert folders.may_be_deleted(left, seen(replace(OTHERS, in_sync=OTHERS.in_sync | {Seat("n1", "z")}))), "copied anew"
    assert not folders.may_be_deleted(left, seen(replace(OTHERS, in_sync=OTHERS.in_sync | {Seat("n1", "a")})))
    assert not folders.may_be_deleted(left, seen(replace(OTHERS, in_sync=frozenset({Seat("n2", "b")}))))
    assert not folders.may_be_deleted(left, RegistrySnapshot(9, {}))
