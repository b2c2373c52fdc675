"""The folder of a node: what is refused, by the names of both sides, and that nothing is written then."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

from eventstore.errors import Corrupt, EventStoreError, FolderRefused, InvalidArgument
from eventstore.settings.store import StoreSettings
from eventstore.store.data_folder import ShardIdentity
from eventstore.store.opening import open_folder
from eventstore_cluster.node_folder import open_checked_folder, open_node_folder
from eventstore_cluster.shard_folders import PlannedShard, ShardLayout, plan
from tests.cli.processes import output, run
from tests.cli.processes import refused as cli_refused

SETTINGS = StoreSettings(preallocate_bytes=1024 * 1024)


def make_store(path: Path, shard: ShardIdentity | None = None) -> uuid.UUID:
    opened = open_folder(path, SETTINGS, shard=shard)
    opened.close()
    return opened.uuid


def make_node(data: Path, shards: int) -> ShardLayout:
    """Makes the folder of a node that has served once."""
    opened = open_node_folder(data, shards)
    with opened.registry as registry:
        for planned in opened.layout.shards:
            make_store(planned.folder, planned.identity)
        entries = opened.layout.changes()
        for key, value in entries.items():
            if key.startswith("shard/") and value is not None:
                value["created"] = True
        trio.run(registry.transact, {}, entries)
    return plan(data, None)


def content(data: Path) -> dict[str, bytes]:
    """Returns every file but the locks, in which a process may leave its number."""
    files = (path for path in data.rglob("*") if path.is_file() and path.name not in ("lock", "registry.lock", "lock.mdb"))
    return {str(path.relative_to(data)): path.read_bytes() for path in files}


def refused(data: Path, shards: int | None = None) -> EventStoreError:
    """Returns why the folder is refused; nothing in it has changed then."""
    before = content(data)
    with pytest.raises((FolderRefused, Corrupt)) as raised:
        open_node_folder(data, shards)
    assert content(data) == before
    error = raised.value
    assert isinstance(error, EventStoreError)
    return error


def test_a_new_folder_has_the_shards_that_were_asked_for_and_they_own_every_slot(tmp_path: Path) -> None:
    made = make_node(tmp_path / "data", 3)
    assert [shard.identity.slots for shard in made.shards] == [((0, 1364),), ((1365, 2729),), ((2730, 4095),)]
    assert [shard.folder.name for shard in made.shards] == ["shard-0", "shard-1", "shard-2"]
    with open_node_folder(tmp_path / "data", None).registry as registry:
        assert registry.state.value("cluster") == {"uuid": made.cluster.hex, "layout": 1}


def test_planning_a_new_folder_writes_nothing(tmp_path: Path) -> None:
    plan(tmp_path / "data", 4)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("shards", [0, -1, 4097])
def test_a_number_of_shards_out_of_range_is_refused_and_makes_no_folder(tmp_path: Path, shards: int) -> None:
    with pytest.raises(InvalidArgument, match="1 to 4096"):
        open_node_folder(tmp_path / "data", shards)
    assert list(tmp_path.iterdir()) == []


def test_another_number_of_shards_is_refused_by_both_numbers(tmp_path: Path) -> None:
    make_node(tmp_path / "data", 2)
    assert "has 2 shards, --shards asks for 4" in refused(tmp_path / "data", 4).message


def test_a_store_cannot_become_several_shards(tmp_path: Path) -> None:
    make_store(tmp_path / "data")
    assert "has 1 shard, --shards asks for 4" in refused(tmp_path / "data", 4).message


def test_the_folder_of_a_single_store_is_its_own_shard(tmp_path: Path) -> None:
    data = tmp_path / "data"
    store = make_store(data)
    made = make_node(data, 1)
    assert [(shard.folder, shard.identity.store) for shard in made.shards] == [(data, store)]
    assert make_store(data) == store  # as `serve` opens it
    assert plan(data, 1) == made


def test_two_shards_with_each_others_folders_are_refused_by_what_they_are_and_should_be(tmp_path: Path) -> None:
    data = tmp_path / "data"
    made = make_node(data, 2)
    (data / "shard-0").rename(data / "other")
    (data / "shard-1").rename(data / "shard-0")
    (data / "other").rename(data / "shard-1")
    said = refused(data).message
    assert all(str(shard.identity.store) in said for shard in made.shards)


def test_a_shard_that_has_served_and_is_missing_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    made = make_node(data, 2)
    shutil.rmtree(data / "shard-1")
    assert str(made.shards[1].identity.store) in refused(data).message
    assert not (data / "shard-1").exists()


def test_a_shard_of_another_cluster_is_refused_by_both_clusters(tmp_path: Path) -> None:
    data, made, other = tmp_path / "data", make_node(tmp_path / "data", 2), make_node(tmp_path / "other", 2)
    shutil.rmtree(data / "shard-0")
    (tmp_path / "other" / "shard-0").rename(data / "shard-0")
    said = refused(data).message
    assert str(made.cluster) in said
    assert str(other.cluster) in said
    shutil.rmtree(data / "cluster")
    said = refused(data).message
    assert str(made.cluster) in said
    assert str(other.cluster) in said


@pytest.mark.parametrize("shards", [1, 2])
def test_a_folder_of_another_cluster_beside_the_shards_is_refused_by_both_clusters(tmp_path: Path, shards: int) -> None:
    data, made, other = tmp_path / "data", make_node(tmp_path / "data", shards), make_node(tmp_path / "other", 3)
    (tmp_path / "other" / "shard-2").rename(data / "shard-2")
    said = refused(data).message
    assert str(made.cluster) in said
    assert str(other.cluster) in said
    shutil.rmtree(data / "shard-2")
    store = make_store(data / "shard-7")
    assert f"holds store {store} of no cluster" in refused(data).message
    shutil.rmtree(data / "shard-7")
    (data / "shard-7").mkdir()
    assert plan(data, None) == made


def test_a_lost_registry_is_made_anew_from_the_shards_with_a_newer_map(tmp_path: Path) -> None:
    data = tmp_path / "data"
    made = make_node(data, 3)
    shutil.rmtree(data / "cluster")
    assert plan(data, 3) == made
    with open_node_folder(data, None).registry as registry:
        assert registry.state.entries == {}
        assert registry.state.revision > 1_700_000_000


def test_without_a_registry_a_missing_shard_is_noticed_by_its_slots(tmp_path: Path) -> None:
    data = tmp_path / "data"
    make_node(data, 3)
    shutil.rmtree(data / "cluster")
    shutil.rmtree(data / "shard-1")
    assert "no shard owns slot 1365" in refused(data).message


def test_a_damaged_registry_is_refused_with_the_next_step(tmp_path: Path) -> None:
    data = tmp_path / "data"
    make_node(data, 2)
    document = data / "cluster" / "registry.json"
    whole = json.loads(document.read_text())
    for damaged in (
        "{", "[]", "{}", json.dumps({**whole, "revision": 0}), json.dumps({**whole, "keys": {"cluster": 1}}),
        json.dumps({**whole, "keys": {}}),
    ):  # fmt: skip
        document.write_text(damaged)
        assert says_where_the_registry_is_known(refused(data))
    document.write_text(json.dumps({**whole, "format": 2}))
    assert "format 2" in refused(data).message


@pytest.mark.parametrize("slots", [[[0, 2046]], [[0, 2050]], [], "0-1"])
def test_a_registry_whose_slots_have_two_owners_or_none_is_refused(tmp_path: Path, slots: object) -> None:
    data = tmp_path / "data"
    make_node(data, 2)
    document = data / "cluster" / "registry.json"
    whole = json.loads(document.read_text())
    whole["keys"]["shard/0"]["value"]["slots"] = slots
    document.write_text(json.dumps(whole))
    assert says_where_the_registry_is_known(refused(data))


@pytest.mark.parametrize("edit", ["boundary", "uuid", "cluster"])
def test_a_registry_and_a_shard_that_disagree_may_both_be_wrong(tmp_path: Path, edit: str) -> None:
    data = tmp_path / "data"
    made = make_node(data, 2)
    document = data / "cluster" / "registry.json"
    whole = json.loads(document.read_text())
    first, second, head = (whole["keys"][key]["value"] for key in ("shard/0", "shard/1", "cluster"))
    if edit == "boundary":
        first["slots"], second["slots"] = [[0, 2000]], [[2001, 4095]]
    else:
        (second if edit == "uuid" else head)["uuid"] = uuid.uuid4().hex
    document.write_text(json.dumps(whole))
    error = refused(data)
    assert error.message.startswith(str(data / f"shard-{0 if edit == 'cluster' else 1}"))
    assert "either may be wrong" in error.message
    assert says_where_the_registry_is_known(error)
    for each in document.parent.glob("registry.json*"):  # as it says
        each.unlink()
    assert plan(data, None) == made


def says_where_the_registry_is_known(error: EventStoreError) -> bool:
    steps = "put back its previous copy, registry.json.previous, or remove both: the shards know all of it"
    return isinstance(error, FolderRefused) and "registry.json" in str(error.fields) and error.message.endswith(steps)


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "letters.txt").write_text("dear")
    assert "letters.txt" in refused(data, 2).message
    assert "not a folder" in refused(data / "letters.txt", 2).message


def test_a_folder_that_another_node_has_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    make_node(data, 2)
    with open_node_folder(data, None).registry:
        assert "in use by process" in refused(data).message


def test_the_shards_of_a_new_folder_are_checked_once_and_again_if_another_node_has_made_them_meanwhile(tmp_path: Path) -> None:
    checked = list[int]()

    def check(shards: Sequence[PlannedShard]) -> int:
        checked.append(len(shards))
        return len(shards)

    opened, found = open_checked_folder(tmp_path / "once", 2, check)
    opened.registry.close()
    assert (checked, found) == ([2], 2)

    def check_slowly(shards: Sequence[PlannedShard]) -> int:
        if not (tmp_path / "twice").exists():
            make_node(tmp_path / "twice", 3)
        return check(shards)

    checked.clear()
    opened, found = open_checked_folder(tmp_path / "twice", None, check_slowly)
    opened.registry.close()
    assert (checked, found) == ([1, 3], 3)


def test_a_store_that_is_open_is_refused_before_anything_is_put_beside_it(tmp_path: Path) -> None:
    data = tmp_path / "data"
    opened = open_folder(data, SETTINGS)
    assert "in use by process" in refused(data, 1).message
    assert not (data / "cluster").exists()
    opened.close()


def test_a_start_that_failed_before_a_shard_was_made_does_not_bind_the_next_one(tmp_path: Path) -> None:
    data = tmp_path / "data"
    opened = open_node_folder(data, 4)
    with opened.registry as registry:
        trio.run(registry.transact, {}, opened.changes())
    assert len(plan(data, None).shards) == 4
    assert plan(data, 4) == opened.layout
    opened = open_node_folder(data, 2)
    with opened.registry as registry:
        trio.run(registry.transact, {}, opened.changes())
        assert opened.changes() == {}
    assert plan(data, None) == opened.layout
    make_store(opened.layout.shards[0].folder, opened.layout.shards[0].identity)
    assert "has 2 shards, --shards asks for 4" in refused(data, 4).message


def test_inspect_and_verify_go_through_the_shards_in_the_folder_of_a_node(tmp_path: Path) -> None:
    data = tmp_path / "data"
    made = make_node(data, 2)
    shutil.copytree(data / "shard-1", data / "shard-01")  # not the name of a shard, so it is not one
    shown = output("inspect", data)
    assert "shard-01" not in shown
    assert shown.startswith(f"{data}: the folder of a cluster's node; ")
    assert all(str(shard.identity.store) in shown and shard.folder.name in shown for shard in made.shards)
    lines = output("verify", data).splitlines()
    assert [line.partition(":")[0] for line in lines] == ["shard-0", "no faults", "shard-1", "no faults"]
    (data / "shard-1" / "events" / "0000000001.events").write_bytes(b"not events")
    found = run("verify", data, "--json")
    assert found.returncode == 1
    told = json.loads(found.stdout)
    assert (told["sound"], {name: each["sound"] for name, each in told["shards"].items()}) == (
        False, {"shard-0": True, "shard-1": False},
    )  # fmt: skip
    shutil.rmtree(data / "shard-1")
    assert str(made.shards[1].identity.store) in cli_refused("verify", data, code=2)
