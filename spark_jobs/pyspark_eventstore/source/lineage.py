"""Where a stream or an export continues that began before shards were split, and by which slots a folder is read.

If an offset does not name a shard that was split off, the offset is from before the split: everything up to it was read of the
parent, including the slots that the new shard has now. So a micro-batch follows from its two offsets alone, whenever it is
planned again. Its end says by which slots a shard is read. Its start says where a new shard begins: where its parent was, at
most at the last event that both have. This holds because a parent is not read up to a split without the folder of the shard
that got its slots.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import TypeAlias
from uuid import UUID

from eventstore.errors import FolderRefused
from eventstore.records.cluster_map import ALL_SLOTS, slots_text
from eventstore.records.slots import ranges_of, slots_in
from eventstore.records.splits import Split
from eventstore.store.data_folder import ShardIdentity
from pyspark_eventstore.source.data_folders import DataFolder
from pyspark_eventstore.source.snapshot import FolderSnapshot

_Key: TypeAlias = tuple[UUID, int]
"""A cluster and the number of one of its shards."""


class SnapshotLineage:
    """The shards in the folders of these snapshots, as far as splits are known of them.

    Raises:
        FolderRefused: a folder does not say that its shard was split, though another one begins with its events.
    """

    def __init__(self, snapshots: Iterable[FolderSnapshot]) -> None:
        known = list(snapshots)
        found = [(each.data_folder.shard, each) for each in known if each.data_folder.shard is not None]
        self._snapshots = {(shard.cluster, shard.shard): snapshot for shard, snapshot in found}
        self._shards = {(shard.cluster, shard.shard): shard for shard, _ in found}
        self._splits = sorted({(shard.cluster, split) for shard in self._shards.values() for split in shard.splits})
        self._stores = _stores(self._shards)
        self._check_lineage(each.data_folder for each in known)

    def _check_lineage(self, folders: Iterable[DataFolder]) -> None:
        """Refuses a folder that does not know of a split of its shard. The folder of a replica that was away still has all
        slots of its shard, including slots of shards that were split off since.
        """
        here = {each.store: each for each in folders}
        parents = {(cluster, split.child): (cluster, split.parent) for cluster, split in self._splits}
        for key, shard in self._shards.items():
            line = _line(key, parents)
            for before in (here[str(each.store)] for each in shard.ancestors if str(each.store) in here):
                if before.shard is None or (before.shard.cluster, before.shard.shard) not in line:
                    begins = f"{self._snapshots[key].data_folder.path} begins with its events"
                    next_step = "start its node, name the folders of the shards between the two, or leave it out"
                    raise FolderRefused(before.path, f"does not say that its shard was split, but {begins}; {next_step}")

    def begun(self, start: Mapping[str, int]) -> dict[str, int]:
        """Returns the offset with the places of shards that were split off since.

        Raises:
            FolderRefused: where a shard begins cannot be told, as it does not have all events that it was to begin with.
        """
        places = {key: start[store] for key, store in self._stores.items() if store in start}
        for cluster, split in self._splits:
            parent, child = (cluster, split.parent), (cluster, split.child)
            if parent in places and child not in places:
                places[child] = min(places[parent], split.through)
        for key in self._shards.keys() - places.keys():
            if (place := self._place_of_ancestor(key, start)) is not None:
                places[key] = place
        return {**start, **{str(shard.store): places[key] for key, shard in self._shards.items() if key in places}}

    def _place_of_ancestor(self, key: _Key, start: Mapping[str, int]) -> int | None:
        """Returns where a shard begins if an ancestor that is not its parent was read; None if none was. The folders between
        the two may be gone: the last event file that the shard has of that ancestor ends where they were split.
        """
        shard, snapshot = self._shards[key], self._snapshots[key]
        shared = snapshot.shared_with(start)
        if shared is None:
            return None
        store, last = shared
        born = next((split.through for split in shard.splits if split.child == shard.shard), None)
        if born is None or snapshot.last_sequence < born:
            what = f"ends at sequence {snapshot.last_sequence}, before all that it begins with: where it goes on cannot be told"
            raise FolderRefused(snapshot.data_folder.path, f"{what}; wait until it is complete, or put the right one back")
        return min(start[store], last)

    def read_by(self, folder: DataFolder, start: Mapping[str, int], named: Collection[str]) -> DataFolder:
        """Returns the folder of a shard as it is read after its place in `start`: with the slots of shards that were split off
        and that an offset does not name.

        Raises:
            FolderRefused: the folder of a shard split off after that place is missing: its events would be left out.
        """
        shard = folder.shard
        if shard is None:
            return folder
        own = [split for cluster, split in self._splits if cluster == shard.cluster and shard.shard in split[1:3]]
        given = [split for split in own if split.parent == shard.shard]
        if not given:
            return folder
        slots, splits = set(slots_in(shard.slots)), [split for split in own if split.child == shard.shard]
        for split in given:
            family = self._family(shard.cluster, split.child)
            theirs = {slot for key in family & self._shards.keys() for slot in slots_in(self._shards[key].slots)}
            if start.get(folder.store, 0) >= split.through or self._stores.get((shard.cluster, split.child)) in named:
                splits.append(split)
                slots -= theirs
            else:
                self._check_there(folder, split, family)
                slots |= theirs
        return replace(folder, shard=replace(shard, slots=ranges_of(sorted(slots)), splits=tuple(sorted(splits))))

    def _family(self, cluster: UUID, shard: int) -> set[_Key]:
        """Returns a shard and all shards that were split off from it, directly or not."""
        found = {(cluster, shard)}
        for each, split in self._splits:  # a parent is made before its children
            if (each, split.parent) in found:
                found.add((each, split.child))
        return found

    def _check_there(self, folder: DataFolder, split: Split, family: set[_Key]) -> None:
        missing = sorted(family - self._shards.keys())
        if missing:
            cluster, shard = missing[0]
            held = {slot for key, each in self._shards.items() if key[0] == cluster for slot in slots_in(each.slots)}
            lacking = slots_text(ranges_of(sorted(slots_in(ALL_SLOTS) - held)))
            whose = f"of its events up to sequence {split.through} some are of shard {shard}, which was split off, and whose"
            what = f"{whose} folder is missing here (its slots are among {lacking})"
            next_step = "name that folder, too, or wait until it is there, and run this again"
            raise FolderRefused(folder.path, f"{what}; {next_step}")


def _line(key: _Key, parents: Mapping[_Key, _Key]) -> set[_Key]:
    """Returns the shards that this one was split off from, as far as they are known."""
    found = set[_Key]()
    while (parent := parents.get(key)) is not None and parent not in found:
        found.add(parent)
        key = parent
    return found


def _stores(shards: Mapping[_Key, ShardIdentity]) -> dict[_Key, str]:
    """Returns the stores of these shards, and of the shards that they were split off from."""
    found = {key: str(shard.store) for key, shard in shards.items()}
    for (cluster, number), shard in shards.items():
        parent = next((split.parent for split in shard.splits if split.child == number), None)
        if parent is not None and shard.ancestors:
            found.setdefault((cluster, parent), str(shard.ancestors[-1].store))
    return found


def check_complete(snapshots: Iterable[FolderSnapshot], after: Mapping[str, int], upto: Mapping[str, int]) -> None:
    """Refuses a log that is still being copied: it lacks events that another folder had before the split."""
    for each in snapshots:
        shard, store, ends = each.data_folder.shard, each.data_folder.store, each.last_sequence
        through = max((split.through for split in shard.splits), default=0) if shard is not None else 0
        if ends < min(through, upto.get(store, through)) and after.get(store, 0) < through:
            what = f"ends at sequence {ends}, and its shard was split after {through}: it is not complete yet, or an older copy"
            raise FolderRefused(each.data_folder.path, f"{what}; wait until it is complete, or put the right one back")
