"""Mends rot: a follower replaces a damaged final file by another replica's file; a leader gives way first.

A final file is the same records on all replicas (R6). The other file is fetched beside the rotten one, read from end to end and
compared with the own header, if that is whole. The rotten file keeps a name in `cut/`; one rename puts the other file in its
place.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import trio

from eventstore.chunks.files import Files
from eventstore.chunks.folder import TEMPORARY
from eventstore.chunks.header import FOOTER_BYTES, HEADER_BYTES, ChunkHeader, decode_header
from eventstore.chunks.opening import CUT
from eventstore.chunks.scrubbing import ChunkCheck
from eventstore.errors import Corrupt, EventStoreError
from eventstore.server.bootstrap import until
from eventstore.server.logs import get_logger
from eventstore.server.verification.verified_files import Verified, events_of, messages_of
from eventstore.server.verification.verifying import Verifying
from eventstore_cluster.registry.etcd.lease import now
from eventstore_cluster.replica.places import LogEnds
from eventstore_cluster.replication.driver import ReplicaDriver
from eventstore_cluster.replication.links import Links
from eventstore_cluster.replication.logs.follower_logs import FollowerLogs
from eventstore_cluster.replication.peer_frames import FileWanted
from eventstore_cluster.replication.shard_registry import ShardRegistry

_ALL: Final = 1 << 62
_PIECE_BYTES: Final = 1024 * 1024
_PIECES: Final = 16  # in memory at a time
_AGAIN_S: Final = 2.0
_AGAIN_MAX_S: Final = 30.0  # each time, the files of the others are read
_log = get_logger("eventstore.cluster")


class FinalFiles:
    """The files of a replica that nothing writes to any more, and that are never cut back (R6), because a record of a later
    file is committed.

    `committed` returns what is; None: it is not known yet. `in_sync` returns whether this replica is in sync. If it is, its
    sorted files were final when they were sorted, and still are.

    Attributes:
        folders: in the order in which they are verified.
    """

    def __init__(self, logs: FollowerLogs, committed: Callable[[], LogEnds | None], in_sync: Callable[[], bool]) -> None:
        self._committed, self._in_sync = committed, in_sync
        self.folders = [
            events_of(logs.events.folder, partial(self._committed_in, 0)),
            messages_of(logs.messages.folder, partial(self._committed_in, 1)),
        ]
        self._by_kind = {each.folder.kind: each for each in self.folders}

    def _committed_in(self, kind: int) -> int:
        ends = self._committed()
        if ends is None:  # perhaps because a replica that has lost a file is waited for
            return _ALL if kind == 0 and self._in_sync() else 0
        return ends[kind][0]

    def read(self, wanted: FileWanted) -> bytes | None:
        """Returns what another replica asks for, at most a megabyte; None if there is no such file, or it is not final.

        Raises:
            EventStoreError, OSError: it cannot be read.
        """
        of = self._by_kind.get(wanted.kind)
        path = None if of is None else of.folder.chunk_path(wanted.chunk)
        if of is None or path is None or not of.folder.files.exists(path):
            return None
        file = of.folder.files.open(path)
        try:
            if not of.is_final(decode_header(file.read_at(0, HEADER_BYTES), str(path), wanted.kind)):
                return None
            return file.read_at(wanted.offset, min(wanted.length, _PIECE_BYTES))
        finally:
            file.close()


class OtherFiles:
    """The files of the other replicas of a shard, as a follower fetches them (see `Others`)."""

    def __init__(self, links: Links, registry: ShardRegistry, node: str) -> None:
        """`node`: the own node."""
        self._links, self._registry, self._node = links, registry, node

    async def differs(self, of: Verified, own: ChunkHeader) -> str | None:
        theirs = None if self._links.leader is None else await self._header(self._links.leader, of, own.number)
        if theirs is None or _content(theirs) == _content(own):
            return None
        return f"{own.records} records with checksum {own.checksum} here, {theirs.records} with {theirs.checksum} there"

    async def mended(self, of: Verified, number: int) -> bool:
        for address in self._registry.peers(self._node).values():
            if await self._use(address, of, number, put_in_place):
                return True
        return False

    async def has_sound(self, node: str, of: Verified, number: int) -> bool:
        """Whether a replica has a file undamaged: it is fetched and read, and not kept."""
        address = self._registry.peers(self._node).get(node)
        return address is not None and await self._use(address, of, number, drop_sound)

    async def _use(self, address: str, of: Verified, number: int, use: Callable[[Verified, int, Path], None]) -> bool:
        """Fetches a replica's file, durably but for its name, and calls `use` on a thread. False: none can be had there."""
        try:
            header = await self._header(address, of, number)
            if header is None:
                return False
            fetched = await self._fetched(address, of, header)
            await trio.to_thread.run_sync(use, of, number, fetched)
        except (EventStoreError, OSError) as error:
            name = str(of.folder.chunk_path(number))
            _log.warning("a file cannot be had from another replica", file=name, by=address, error=str(error))
            return False
        return True

    async def _header(self, address: str, of: Verified, number: int) -> ChunkHeader | None:
        """Returns the header of a replica's file; None if it does not have it, or does not answer."""
        try:
            (raw,) = await self._links.ask(address, [FileWanted(0, of.folder.kind, number, 0, HEADER_BYTES)])
            return None if raw is None else decode_header(raw, f"the file of {address}", of.folder.kind)
        except (EventStoreError, OSError) as error:
            _log.debug("a replica does not say what its file is", by=address, file=number, error=str(error))
            return None

    async def _fetched(self, address: str, of: Verified, header: ChunkHeader) -> Path:
        """Returns where a replica's file is, durably but for its name. Raises EventStoreError, OSError."""
        files, path = of.folder.files, of.folder.chunk_path(header.number)
        temporary = path.with_name(path.name + TEMPORARY[0])
        if files.exists(temporary):
            files.remove(temporary)
        file, size = files.open(temporary, create=True), header.end + FOOTER_BYTES
        try:
            wanted = [
                FileWanted(number, of.folder.kind, header.number, offset, min(_PIECE_BYTES, size - offset))
                for number, offset in enumerate(range(0, size, _PIECE_BYTES))
            ]
            for some in (wanted[first : first + _PIECES] for first in range(0, len(wanted), _PIECES)):
                for each, data in zip(some, await self._links.ask(address, some), strict=True):
                    if data is None or len(data) != each.length:
                        raise Corrupt(str(path), each.offset, f"the file of {address} ends there, or is gone")
                    await trio.to_thread.run_sync(file.write_at, each.offset, [data])
            await trio.to_thread.run_sync(file.sync)
        except BaseException:
            files.remove(temporary)
            raise
        finally:
            file.close()
        return temporary


def put_in_place(of: Verified, number: int, fetched: Path) -> None:
    """Replaces a rotten or missing file by the file at `fetched`, durably, if both have the same content. A crash leaves the
    old file or the good one in its place.

    Raises:
        Corrupt: the fetched file is damaged, or another one; it is removed.
        OSError
    """
    folder, files = of.folder, of.folder.files
    path = folder.chunk_path(number)
    _check(of, number, fetched)
    if files.exists(path):
        copies = folder.path.parent / CUT
        files.make_folder(copies)
        names = (copies / f"{number:010d}-rot-{place}" for place in itertools.count())
        files.link(path, next(each for each in names if not files.exists(each)))
        files.sync_folder(copies)
    files.rename(fetched, path)
    files.sync_folder(folder.path)


def drop_sound(of: Verified, number: int, fetched: Path) -> None:
    """Checks the file at `fetched` and removes it.

    Raises:
        Corrupt: the fetched file is damaged, or another one; it is removed.
        OSError
    """
    _check(of, number, fetched)
    of.folder.files.remove(fetched)


def _check(of: Verified, number: int, fetched: Path) -> None:
    """Reads the file at `fetched`, and removes it if its content is not the rotten file's. Raises Corrupt, OSError."""
    try:
        with ChunkCheck(of.folder.files, fetched, of.folder.kind, of.framing) as check:
            check.read_all()
        _check_same(of, number, check.header)
    except BaseException:
        of.folder.files.remove(fetched)
        raise


def _check_same(of: Verified, number: int, fetched: ChunkHeader) -> None:
    """Raises Corrupt: as far as can be told, the fetched file has another content than the rotten one had."""
    name = str(of.folder.chunk_path(number))
    if (fetched.number, fetched.store) != (number, of.folder.store_of(number)) or not of.is_final(fetched):
        raise Corrupt(name, 0, f"another replica sends chunk {fetched.number} of store {fetched.store}, {fetched.state}")
    own = _own_header(of.folder.files, of, number)
    if own is not None and _content(own) != _content(fetched):
        raise Corrupt(
            name, 0, f"the leader's has {fetched.records} records with checksum {fetched.checksum}, this one had others"
        )


def _own_header(files: Files, of: Verified, number: int) -> ChunkHeader | None:
    path = of.folder.chunk_path(number)
    if not files.exists(path):
        return None
    file = files.open(path)
    try:
        return decode_header(file.read_at(0, HEADER_BYTES), str(path), of.folder.kind)
    except EventStoreError:
        return None
    finally:
        file.close()


def _content(header: ChunkHeader) -> ChunkHeader:
    """Returns what is the same on all replicas, whether they have sorted it or not."""
    return replace(header, flags=0)


async def give_way_to_rot(driver: ReplicaDriver, verifying: Verifying, others: OtherFiles, stopping: trio.Event) -> None:
    """Has a leader with a damaged file hand over to a replica in sync that has it sound, and mends it as a follower."""
    wait_s = _AGAIN_S
    async with until(stopping):
        while True:
            to = await _successor(driver, verifying, others)
            if to is not None:
                await verifying.give_way()
                asked = await driver.run_of.registry.ask_successor(to)
                _log.warning("leadership is to be handed over, because of rot", to=to, asked=asked)
                if not asked:
                    await verifying.stay()
            wait_s = min(2 * wait_s, _AGAIN_MAX_S) if verifying.lacking and to is None else _AGAIN_S
            with trio.move_on_after(wait_s):
                await verifying.news.wait()
                verifying.news, wait_s = trio.Event(), _AGAIN_S


async def _successor(driver: ReplicaDriver, verifying: Verifying, others: OtherFiles) -> str | None:
    """Returns a replica in sync that has the damaged file sound; None: no file is damaged, or no replica has it."""
    lacking = verifying.lacking
    if lacking is None or verifying.gave_way:
        return None
    nodes = [each.node for each in driver.replica.level_members(now()) if each != driver.replica.me.member]
    for node in random.sample(nodes, len(nodes)):
        if await others.has_sound(node, *lacking):
            return node
    return None
