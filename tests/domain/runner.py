"""Runs the bank in the simplest correct way: restore, decide, append on the version that was decided on."""

from __future__ import annotations

import bank
import eventstore as es
import eventstore.domain as d
from eventstore import flat
from eventstore.domain.encoding.event_type import event_type
from eventstore.store.embedded import EmbeddedStore


async def execute(store: EmbeddedStore, command: object, command_id: str, *, metadata: object = None) -> es.Committed | None:
    """Runs a command against the store, once per command id."""
    raw = d.encode_command(command)
    done = await store.find_command(raw.aggregate_id, command_id)
    if done is not None:
        return done
    handler, decoded = bank.app.decode(raw.type, raw.payload, raw.aggregate_id)
    aggregate = await d.restore_from(store, handler.aggregate, raw.aggregate_id)
    version = aggregate.version
    handled = await handler.run_async(decoded, aggregate)
    if handled.error is not None:
        raise handled.error
    values = flat.decode_trusted(handled.events, 4 * handled.event_count)
    events = [tuple.__new__(es.NewEvent, values[at : at + 4]) for at in range(0, len(values), 4)]
    return await store.append(raw.aggregate_id, events, version, command_id)


def new_events(*events: object) -> list[es.NewEvent]:
    return [event_type(type(event)).encode(event) for event in events]
