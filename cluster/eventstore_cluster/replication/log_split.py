"""Splits the log of a leader: holds slots back, begins a new event file, and says where the new shards end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from eventstore.chunks.documents import Tree, read_tree
from eventstore.chunks.files import OsFiles
from eventstore.errors import EventStoreError
from eventstore.model import ANY, NewEvent
from eventstore.records.commit import NO_FINGERPRINT
from eventstore.records.event_filter import LOG_RECORDS
from eventstore.records.raw_commit import encode_commit
from eventstore.records.slots import number_of_slot
from eventstore.server.logs import get_logger
from eventstore.server.serve import REACTIONS, Server
from eventstore.store.append import AppendOutcome
from eventstore_cluster.replication.shard_registry import ShardRegistry
from eventstore_cluster.replication.slot_gifts import Cut

FILE_BEGUN: Final = "$FileBegun"
HELD_BACK: Final = "$SlotsHeldBack"
_RESTS_S: Final = 2.0
"""How long nothing is sorted after slots were held back: the new shards begin on the same processors."""
_log = get_logger("eventstore.cluster")


def record_id(slot: int) -> str:
    """Returns the aggregate id of the records that new files begin with. The id has a slot of the shard that writes them, and
    goes with the slot when that is given away. So a reader that asks all shards for this aggregate sees each record once, and
    its versions in order.
    """
    return f"{LOG_RECORDS}{number_of_slot(slot)}}}"


class LogSplit:
    """Splits the log of a leader, whose server is `server` and whose folder is `data`."""

    def __init__(self, server: Server, data: Path, registry: ShardRegistry) -> None:
        self._server, self._data, self._registry = server, data, registry
        self._last: tuple[int, int] | None = None
        self._places: Tree = {}
        registry.cut = self._cut

    def stop(self) -> None:
        """Stops the server, which writes nothing more then."""
        self._server.stop()

    def begin_file(self) -> None:
        """Begins a new event file, unless nothing may be written now."""
        self._begin_file(FILE_BEGUN, {})

    def hold_back(self) -> int | None:
        """Writes nothing more for the slots of the shards in preparation, then begins a new event file.

        Returns the number of the one before; None: nothing may be written now, or the shard has keys of subjects.
        """
        server, children = self._server, self._registry.children()
        assert server.slots is not None
        if server.subjects.there_are:  # they came after the clones have looked
            return None
        for key in children.values():
            assert key.lineage.birth is not None
            server.slots.give_up(key.lineage.birth.slots)
        server.store.committer.held_back = server.slots.refusals
        front = server.store.engine.front
        self._last = front.chunk, front.next_sequence - 1
        self._places = self._read_places()
        server.store.maintenance.rest(_RESTS_S)
        _log.info("slots are held back for a split", shards=list(children), after=self._last[1], file=self._last[0])
        return self._last[0] if self._begin_file(HELD_BACK, {"shards": list(children)}) else None

    def _begin_file(self, type_: str, fields: Tree) -> bool:
        store = self._server.store
        assert self._server.slots is not None
        aggregate_id = record_id(self._server.slots.lowest)
        event = NewEvent(type_, json.dumps(fields).encode())
        _, _, command_id, when, events = encode_commit(aggregate_id, [event], ANY, None, None)
        outcomes: list[AppendOutcome] = []
        store.engine.front.end_chunk()
        before = store.engine.barrier
        store.committer.submit([(aggregate_id, ANY, command_id, when, (events, 1, NO_FINGERPRINT))], outcomes.extend, self)
        store.committer.kick()
        return store.engine.barrier > before

    def _read_places(self) -> Tree:
        """Returns how far reactions and outboxes are, which may be further by now."""
        places: Tree = {"published": dict(self._server.publishing.places())}
        try:
            places["reactions"] = read_tree(OsFiles(), self._data / REACTIONS)
        except FileNotFoundError:
            pass
        except (EventStoreError, OSError) as error:  # commands of theirs that were sent before take effect once
            _log.warning("the new shards react from the first event again", error=str(error))
        return places

    def _cut(self) -> Cut:
        assert self._last is not None, "slots are held back"
        number, through = self._last
        if not number:
            return Cut(through, 0, 0, 0, self._places)
        header = self._server.store.engine.files.folder.read_header(number)
        return Cut(through, number, header.end, header.checksum, self._places)
