"""Makes a backup of the shards whose folders are on this machine; the servers only say up to where they count."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from eventstore import blocking
from eventstore.backup.checking import CheckedBackup, check_backup
from eventstore.backup.making import BackupHow, Made, ReadPace, make_backup
from eventstore.backup.manifest import Manifest
from eventstore.backup.source import DataSource, ShardCut, event_at
from eventstore.backup.target import FolderTarget
from eventstore.backup.view import show
from eventstore.chunks.documents import Tree, read_tree
from eventstore.chunks.files import OsFiles
from eventstore.cli.transfer.backup_place import backup_place, place_name
from eventstore.errors import ConnectionLost, Corrupt, EventStoreError, FolderRefused, InvalidArgument
from eventstore.event_identity import LogPosition
from eventstore.fields import size_text
from eventstore.store.data_folder import CLUSTER, REPLICA, STORE, read_store, shard_folders
from eventstore.store.verification.folder_survey import held

_NICE: Final = 10
_FOLLOWER_S: Final = 20.0
_FOLLOWER_PAUSE_S: Final = 0.5
_NAME: Final = "eventstore backup"
_KEPT: Final = "kept.json"
_REGISTRY: Final = "registry.json"
_Client = blocking.BlockingStore


@dataclass(frozen=True, slots=True)
class BackupOptions:
    """`rate`: bytes a second; None: no limit. The others are those of the command."""

    place: str
    store: str
    data: list[Path]
    incremental: bool = False
    broker: bool = True
    link: bool = False
    rate: int | None = None


@dataclass(frozen=True, slots=True)
class BackupDone:
    """A backup that is whole. `position`: of its ends, for people."""

    place: str
    number: int
    position: str
    ends: Mapping[int, LogPosition]
    copied: int
    kept: int
    deleted: int
    read_bytes: int
    seconds: float
    linked: bool

    def members(self) -> dict[str, object]:
        ends = {str(number): str(end) for number, end in self.ends.items()}
        return {
            "place": self.place,
            "number": self.number,
            "ends": ends,
            "copied": self.copied,
            "kept": self.kept,
            "deleted": self.deleted,
            "read_bytes": self.read_bytes,
            "seconds": round(self.seconds, 3),
            "linked": self.linked,
        }


@dataclass(slots=True)
class _Shard:
    """A shard, and the folder that is read. `follows`: it is not its leader's. `cut`: None: nothing writes to the folder."""

    number: int
    folder: Path
    follows: bool = False
    cut: ShardCut | None = None
    source: DataSource | None = field(default=None)


def backup(options: BackupOptions, on_progress: Callable[[Made, str], None]) -> BackupDone:
    """Makes a backup. `on_progress` gets what is done, and how fast, in words.

    Raises:
        FolderRefused: a folder is not that of the store, is on another machine, or there is no backup to be added to.
        Diverged: the backup there is of another history.
        Corrupt: a file is damaged; the backup is left as it was.
        InvalidArgument, EventStoreError, OSError
    """
    began = time.monotonic()
    os.nice(_NICE)
    made = Made(on_progress=lambda so_far: on_progress(so_far, _speed(so_far, time.monotonic() - began)))
    with contextlib.ExitStack() as stack:
        taken = time.time_ns() // 1_000
        client: _Client | None = None
        shards = _stopped(options.data, stack)
        if shards is None:
            client = stack.enter_context(_connected(options.store))
            shards = _served(client, options.data)
        target = stack.enter_context(backup_place(options.place, create=not options.incremental))
        if options.incremental and target.manifest() is None:
            raise FolderRefused(target.name, "there is no whole backup here to be added to; leave out --incremental")
        for each in shards:
            each.source = DataSource(OsFiles(), each.folder, broker=options.broker)
            each.source.read_early()
        if client is not None:
            cuts = {row.shard or 0: row for row in client.begin_backup()}
            for each in shards:
                row = cuts[each.number]
                each.cut, taken = ShardCut(row.sequence, row.message), min(taken, row.taken)
        for each in shards:
            assert each.source is not None
            stack.callback(each.source.close)
            _read_late(each, each.source, client)
        sources = {each.number: each.source for each in shards if each.source is not None}
        how = BackupHow(link=options.link, pace=ReadPace(options.rate))
        manifest = make_backup(sources, target, made, taken=taken, cluster=_cluster(shards), options=how)
        if isinstance(target, FolderTarget):
            with contextlib.suppress(InvalidArgument):  # a file system without links
                show(target, manifest)
        if client is not None:
            client.note_backup(place_name(options.place), manifest.taken)
    ends = {number: shard.end for number, shard in manifest.shards.items()}
    counts = made.copied, made.kept, made.deleted, made.read_bytes
    return BackupDone(options.place, manifest.number, ends_of(manifest), ends, *counts, time.monotonic() - began, options.link)


def check(place: str, on_progress: Callable[[CheckedBackup], None]) -> CheckedBackup:
    """Reads a backup back. Raises FolderRefused, Corrupt."""
    with backup_place(place) as target:
        return check_backup(target, on_progress)


def forget(place: str, store: str) -> None:
    """Tells the server that no backup is made into this place any more."""
    with _connected(store) as client:
        client.note_backup(place_name(place), None)


def age_seconds(manifest: Manifest) -> float:
    return max(0.0, time.time() - manifest.taken / 1e6)


def ends_of(manifest: Manifest) -> str:
    """Returns where the shards end, in words for people."""
    if manifest.cluster is None:
        return f"#{manifest.shards[0].end.sequence}"
    return " ".join(f"#{shard.end.sequence}@{number}" for number, shard in sorted(manifest.shards.items()))


def _speed(made: Made, seconds: float) -> str:
    rate = made.read_bytes / max(seconds, 0.001)
    left = (made.total_bytes - made.read_bytes) / rate if rate and made.total_bytes > made.read_bytes else 0
    return f"{size_text(rate)}/s, {left:.0f} s left"


@contextlib.contextmanager
def _connected(store: str) -> Iterator[_Client]:
    try:
        with blocking.connect(store, name=_NAME, reconnect_timeout=0) as client:
            yield client
    except ConnectionLost as error:
        raise ConnectionLost(f"{error.message}; give its address by --store, or stop it and give --data") from None


def _stopped(data: list[Path], stack: contextlib.ExitStack) -> list[_Shard] | None:
    """Returns the shards in folders that no process has open, and keeps it so; None: they are to be asked for."""
    folders = [shard for each in data for shard in _folders_in(each)]
    if not folders:
        return None
    with contextlib.ExitStack() as locks:
        try:
            for each in folders:
                locks.enter_context(held(each))
        except FolderRefused as error:
            if "in use" in str(error.fields["why"]):
                return None
            raise
        stack.push(locks.pop_all())
    return [_Shard(_number(each), each) for each in folders]


def _folders_in(data: Path) -> list[Path]:
    """Returns the data folders of stores: this one, or those of a node's shards."""
    if (data / STORE).exists():
        return [data]
    if not data.is_dir() or not (found := [each for each in shard_folders(data) if (each / STORE).exists()]):
        raise FolderRefused(str(data), f"holds no store ({STORE} is missing); give a data folder, or that of a node")
    return found


def _number(folder: Path) -> int:
    number = read_store(OsFiles(), folder)[1].get("shard")
    return number if isinstance(number, int) else 0


def _served(client: _Client, data: list[Path]) -> list[_Shard]:
    """Returns the shards of a server or cluster, each with a folder on this machine: if there are several, a follower's."""
    local: dict[str, list[Path]] = {}
    for each in (folder for named in data for folder in _folders_in(named)):
        local.setdefault(str(read_store(OsFiles(), each)[0]), []).append(each)
    found = []
    for row in client.begin_backup():
        leads = Path(row.folder)
        folders = local.get(row.store, [] if data else [leads])
        if not folders:
            where = "none of the folders is of this store"
            raise FolderRefused(", ".join(map(str, data)), f"{where}; name a folder of store {row.store} by --data")
        folders.sort(key=lambda each: each.resolve() == leads.resolve())
        chosen = _checked(folders[0], row, named=bool(data))
        found.append(_Shard(row.shard or 0, chosen, follows=chosen.resolve() != leads.resolve()))
    return found


def _read_late(shard: _Shard, source: DataSource, client: _Client | None) -> None:
    """Lists everything up to the cut. A follower is waited for until it has the leader's event there.

    Raises:
        FolderRefused: it does not get it.
    """
    if client is None or shard.cut is None or not shard.follows or not shard.cut.sequence:
        source.read_late(shard.cut)
        return
    leader = client.shards.get(shard.number, client)
    wanted = LogPosition.at(next(iter(leader.read_all(after=shard.cut.sequence - 1))))
    deadline = time.monotonic() + _FOLLOWER_S
    while True:
        try:
            source.read_late(shard.cut)
            if LogPosition.at(event_at(source.events, wanted.sequence)) == wanted:
                return
            why = "has another event than its leader"
        except Corrupt as error:  # it is not there yet, or only in part
            why = f"does not have all events of its leader ({error.message})"
        source.close()
        if time.monotonic() > deadline:
            raise FolderRefused(str(shard.folder), f"{why}; name the folder of another node, or wait until it is in sync")
        time.sleep(_FOLLOWER_PAUSE_S)


def _checked(folder: Path, row: Any, *, named: bool) -> Path:
    """Raises FolderRefused: the folder is not that of the store, so it is on another machine."""
    try:
        if str(read_store(OsFiles(), folder)[0]) == row.store:
            return folder
        why = f"is not the folder of store {row.store}"
    except (EventStoreError, OSError):
        why = f"cannot be read here, and the server has store {row.store} there"
    how = "name a folder of the store by --data" if named else "run this on the machine of the server"
    raise FolderRefused(str(folder), f"{why}; {how}")


def _cluster(shards: list[_Shard]) -> Tree | None:
    """Returns what the folders say of the cluster; None: a single store."""
    documents = [read_store(OsFiles(), each.folder)[1] for each in shards]
    if (cluster := documents[0].get(CLUSTER)) is None:
        return None
    registry: Tree = {}
    for path in {each.folder.parent / name for each in shards for name in (_KEPT, f"{CLUSTER}/{_REGISTRY}")}:
        with contextlib.suppress(OSError, EventStoreError):
            registry[path.name] = read_tree(OsFiles(), path)
    return {"uuid": cluster, "replicas": any((each.folder / REPLICA).exists() for each in shards), "registry": registry}
