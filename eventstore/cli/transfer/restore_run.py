"""Restores a backup into a new folder, and begins a history of its own there."""

from __future__ import annotations

import itertools
import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Final

import trio

import eventstore as es
from eventstore.backup.checking import manifest_of, read_object
from eventstore.backup.manifest import BackedFile, BackedShard, Manifest
from eventstore.backup.restoring import Restored, RestoreEnd, records_of, restore_shard
from eventstore.backup.target import SHARD_FOLDER, BackupTarget
from eventstore.chunks.files import OsFiles
from eventstore.cli.terminal.shared_options import parse_place, parse_time
from eventstore.cli.transfer.backup_place import backup_place
from eventstore.cli.transfer.commit_copies import copy_of, end_of_commit, together
from eventstore.cli.transfer.new_folder import new_folder
from eventstore.errors import EventStoreError, InvalidArgument
from eventstore.fields import RESERVED
from eventstore.model import VERSION_MAX, micros
from eventstore.position import Position
from eventstore.records.commit import CommitView, decode
from eventstore.store.data_folder import CLUSTER, STORE, read_store, shard_of
from eventstore.store.open_store import open_store

TIMELINE: Final = "$timeline"
RESTORED: Final = "$Restored"
_ENDING: Final = ".restoring"
_BATCH_COMMITS: Final = 1000
_Progress = Callable[[Restored], None]


@dataclass(frozen=True, slots=True)
class RestoreOptions:
    """As those of the command."""

    place: str
    data: Path
    until: str | None = None
    broker: bool = True
    shard: int | None = None
    prefix: str | None = None


@dataclass(frozen=True, slots=True)
class RestoreDone:
    """What was restored. `ends`: the last sequence in the backup of each shard that was read; `words`: the same for people."""

    number: int
    events: int
    ends: Mapping[int, int]
    words: str


def restore(options: RestoreOptions, on_progress: _Progress) -> RestoreDone:
    """Restores a backup. Nothing is left of it after an error.

    Raises:
        FolderRefused: the folder is there, or there is no backup.
        InvalidArgument: `until` or the shard is not in the backup.
        Corrupt: the backup is damaged.
        EventStoreError, OSError
    """
    with backup_place(options.place) as target:
        manifest = manifest_of(target)
        untils = _untils(options.until, manifest)
        with new_folder(options.data, _ENDING) as partial:
            if options.prefix is None and options.shard is None:
                ends = _restore_shards(target, manifest, options, untils, partial, on_progress)
                events = sum(ends.values())
            else:
                shards = _chosen(options.shard, manifest)
                events = trio.run(_copy_commits, target, shards, untils, options.prefix or "", partial, on_progress)
                ends = {number: untils[number].sequence or shard.end.sequence for number, shard in shards.items()}
    words = " ".join(f"#{end}" if manifest.cluster is None else f"#{end}@{number}" for number, end in sorted(ends.items()))
    return RestoreDone(manifest.number, events, ends, words)


def _restore_shards(
    target: BackupTarget,
    manifest: Manifest,
    options: RestoreOptions,
    untils: Mapping[int, RestoreEnd],
    partial: Path,
    on_progress: _Progress,
) -> dict[int, int]:
    """Restores all shards as the stores that they were. Returns where they end."""
    ends: dict[int, int] = {}
    files = OsFiles()
    progress = Restored(total_bytes=sum(file.bytes for shard in manifest.shards.values() for file in shard.events.files))
    files.make_folder(partial)
    for number, shard in sorted(manifest.shards.items()):
        folder = partial if len(manifest.shards) == 1 else partial / f"{SHARD_FOLDER}{number}"
        restore_shard(target, shard, files, folder, untils[number], progress, on_progress, broker=options.broker)
        ends[number] = progress.sequence
        trio.run(_begin_timeline, folder, progress.sequence)
    return ends


async def _begin_timeline(folder: Path, sequence: int) -> None:
    """Appends the event that tells this history from that which the store had after `sequence`. Opening the store shows that it
    can be opened.
    """
    _, document = read_store(OsFiles(), folder)
    identity = shard_of(folder, document) if document.get(CLUSTER) is not None else None
    fields = {"after": sequence, "timeline": secrets.token_hex(16)}
    async with open_store(folder, shard=identity) as store:
        await store.append_reserved(TIMELINE, es.NewEvent(RESTORED, fields))


def _chosen(shard: int | None, manifest: Manifest) -> dict[int, BackedShard]:
    """Raises InvalidArgument."""
    if shard is None:
        return dict(manifest.shards)
    if shard not in manifest.shards:
        there = ", ".join(map(str, sorted(manifest.shards)))
        raise InvalidArgument(f"the backup has no shard {shard}; it has: {there}", field="shard", value=shard)
    return {shard: manifest.shards[shard]}


async def _copy_commits(
    target: BackupTarget,
    shards: Mapping[int, BackedShard],
    untils: Mapping[int, RestoreEnd],
    prefix: str,
    folder: Path,
    on_progress: _Progress,
) -> int:
    """Appends the commits of aggregates with this prefix to a new store, shard by shard. Returns how many events these have."""
    events = 0
    progress = Restored(total_bytes=sum(file.bytes for shard in shards.values() for file in shard.events.files))
    async with es.open_store(folder) as store:
        for number, shard in sorted(shards.items()):
            owned = _owned(shard, target)
            for file in shard.events.files:
                found = together(filter(owned, _commits(target, file, untils[number], prefix)))
                while batch := list(itertools.islice(found, _BATCH_COMMITS)):
                    for result in await store._append_copies([copy_of(views) for views in batch]):
                        if isinstance(result, EventStoreError):
                            raise result
                    events += sum(view.count for views in batch for view in views)
                progress.written_bytes += file.bytes
                on_progress(progress)
    return events


def _commits(target: BackupTarget, file: BackedFile, until: RestoreEnd, prefix: str) -> list[CommitView]:
    """Returns the commits of a file that are wanted, without the server's own, by their sequences."""
    found: list[CommitView] = []
    ends = VERSION_MAX if until.sequence is None else until.sequence
    for data, base, offsets in records_of(target, file):
        for offset in offsets:
            view = decode(data, offset - base)
            if until.time is not None and view.time > until.time:
                ends = min(ends, view.sequence - 1)
            elif view.aggregate_id.startswith(prefix) and not view.aggregate_id.startswith(RESERVED):
                found.append(view)
    return sorted((view for view in found if end_of_commit(view) <= ends), key=attrgetter("sequence"))


def _owned(shard: BackedShard, target: BackupTarget) -> Callable[[CommitView], bool]:
    """Returns whether a commit is still the shard's own: since a split, another one may hand it out."""
    document = json.loads(read_object(target, shard.documents[STORE].object))
    filtered = shard_of(Path(STORE), document).slot_filter if document.get(CLUSTER) is not None else None
    return lambda view: filtered is None or filtered.passes(view.aggregate_id, view.sequence)


def _untils(text: str | None, manifest: Manifest) -> dict[int, RestoreEnd]:
    """Returns where each shard ends. Raises InvalidArgument."""
    if text is None:
        return dict.fromkeys(manifest.shards, RestoreEnd())
    if "T" in text or ":" in text:
        return dict.fromkeys(manifest.shards, RestoreEnd(time=micros(parse_time("--until", text), "until")))
    place = parse_place("--until", text)
    if isinstance(place, Position):
        return {number: RestoreEnd(sequence=place.shards.get(number, (0, ""))[0]) for number in manifest.shards}
    if manifest.cluster is not None:
        raise InvalidArgument("--until is a sequence, which counts within a shard: give a position, or a time", field="until")
    return dict.fromkeys(manifest.shards, RestoreEnd(sequence=place))
