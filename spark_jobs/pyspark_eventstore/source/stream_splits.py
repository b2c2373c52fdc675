"""How offsets of a stream follow splits of shards.

An offset that does not name a shard that was split off is from before: everything up to it was read of the parent, the slots
that the new shard has included. So a micro-batch follows from its two offsets alone, whenever it is planned again: by which
slots a shard is read says the end, and where a new shard begins says the start: where its parent was, at most at the last event
that both have.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from eventstore.errors import FolderRefused
from eventstore.records.slots import ranges_of, slots_in
from eventstore.records.splits import Split, translated
from eventstore.store.data_folder import ShardIdentity
from pyspark_eventstore.source.data_folders import DataFolder


class SplitFolders:
    """The shards of these folders, as far as splits are known of them."""

    def __init__(self, folders: Iterable[DataFolder], *, may_lack: bool = True) -> None:
        """`may_lack`: the folder of a shard that was split off may be left out on purpose; else it is still in the making."""
        self._may_lack = may_lack
        self._shards = {(shard.cluster, shard.shard): shard for each in folders if (shard := each.shard) is not None}
        self._splits = sorted({(shard.cluster, split) for shard in self._shards.values() for split in shard.splits})

    def begun(self, start: Mapping[str, int]) -> dict[str, int]:
        """Returns the offset with the places of shards that were split off since."""
        found = dict(start)
        for cluster, split in self._splits:
            parent, child = self._shards.get((cluster, split.parent)), self._shards.get((cluster, split.child))
            if parent is not None and child is not None and str(child.store) not in start and str(parent.store) in found:
                places = translated({split.parent: found[str(parent.store)]}, [split], 0, min)
                found[str(child.store)] = places[split.child]
        return found

    def read_by(self, folder: DataFolder, named: Collection[str]) -> DataFolder:
        """Returns the folder of a shard as one whose slots are also those of shards split off that an offset does not name.

        Raises:
            FolderRefused: a shard was split off whose folder is not there yet: its events would be left out.
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
            if not self._may_lack and (shard.cluster, split.child) not in self._shards:
                what = f"shard {split.child} was split off from it, and its folder is not there yet; run the query again then"
                raise FolderRefused(folder.path, what)
            if self._is_named(shard, split, named):
                splits.append(split)
                slots -= self._slots_of(shard, split)
            else:
                slots |= self._slots_of(shard, split)
        return replace(folder, shard=replace(shard, slots=ranges_of(sorted(slots)), splits=tuple(sorted(splits))))

    def _is_named(self, shard: ShardIdentity, split: Split, named: Collection[str]) -> bool:
        child = self._shards.get((shard.cluster, split.child))
        return child is None or str(child.store) in named

    def _slots_of(self, shard: ShardIdentity, split: Split) -> set[int]:
        """Returns the slots that the child of a split got, also those that it gave away later."""
        child = self._shards.get((shard.cluster, split.child))
        if child is None:
            return set()
        found = set(slots_in(child.slots))
        for cluster, later in self._splits:
            if cluster == shard.cluster and later.parent == split.child:
                found |= self._slots_of(child, later)
        return found
