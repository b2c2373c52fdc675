"""Where the outboxes of split off shards begin: what they begin with was published by another, as far as that one was.

A topic that shows nothing of a new shard yet shows how far the one was whose events it begins with. So new shards publish those
before that one continues.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import trio

from eventstore.client.aio.store import NetworkStore
from eventstore.errors import EventStoreError
from eventstore.following.checkpoint import Checkpoint
from eventstore.following.parts import Part
from eventstore.server.outbox.checkpoint_file import CheckpointFile
from eventstore.server.outbox.outbox import Outbox

_AGAIN_S: Final = 1.0
_log = logging.getLogger(__name__)


async def publish_inherited(
    outboxes: Mapping[int | None, Outbox], parts: Sequence[Part[NetworkStore]], *, end_refused: bool
) -> None:
    """Publishes what new parts begin with, in an order in which the one that has it, too, has not continued yet. `outboxes`: of
    one topic, by part. `end_refused`, and what it raises: see `Outbox.run`.
    """
    new = list[tuple[Outbox, int]]()
    for part in parts:
        if part.origin is not None and part.origin.part is not None:
            own, before = outboxes[part.number], outboxes[part.origin.part]
            if not await _place(own):
                own.begins = Checkpoint(await _place(before)).inherited(part.origin.through).sequence
                await _place(own)  # which begins there now
                new.append((own, part.origin.through))
    for own, through in reversed(new):
        if own.begins < through:
            await own.run(through, end_refused=end_refused)


async def _place(outbox: Outbox) -> int:
    """Returns how far an outbox is, by its topic; waits for servers that are away. Raises Diverged, InvalidArgument."""
    while True:
        try:
            await outbox.resume()
        except EventStoreError as error:
            if not error.retriable:
                raise
            _log.warning("publishing to topic %s waits: %s", outbox.topic, error.message)
            await trio.sleep(_AGAIN_S)
        else:
            return outbox.place


def take_over(checkpoint: Path, own: Path) -> None:
    """Begins the checkpoint of a shard with that of the time when it was the only one. What is another's is not used."""
    if not own.exists() and (found := CheckpointFile(checkpoint).load()) is not None:
        CheckpointFile(own).save(found)
