"""The cluster: nodes, shards with their replicas, and what is under way. A single server is shown as one shard."""

from __future__ import annotations

import json
from typing import Any

import trio
from starlette.responses import Response
from starlette.routing import Route

from eventstore.client.aio.store import NetworkStore
from eventstore.console.console import Console, Visit, link, of_shards, route
from eventstore.console.rendering import size, span
from eventstore.flat import Scalar
from eventstore.records.cluster_map import ClusterMap, slots_text
from eventstore.security.permissions import Permission


def cluster_routes(console: Console) -> list[Route]:
    """Returns the routes."""
    return [route(console, "/cluster", _cluster)]


async def _cluster(visit: Visit) -> Response:
    known, figures = await visit.ask(_asked)
    door = visit.console.subject.cluster
    registry = None if door is None else await trio.to_thread.run_sync(door.look, abandon_on_cancel=True)
    shards = [_row(each, figures.get(each.shard, {}), registry) for each in known.shards]
    return visit.page(
        "cluster.html",
        known=known,
        shards=shards,
        registry=registry,
        link=link,
        may_change=door is not None and visit.may(Permission.CLUSTER),
    )


async def _asked(store: NetworkStore) -> tuple[ClusterMap, dict[int, dict[str, Scalar]]]:
    """Asks for the map, and each shard for its figures, all at once. Shards that do not answer have no figures."""
    known = await store.cluster_map()
    if not store.shards:
        return known, {known.shards[0].shard: await store.stats()}
    return known, await of_shards(store, NetworkStore.stats)


def _row(shard: Any, figures: dict[str, Scalar], registry: dict[str, Any] | None) -> dict[str, Any]:
    known = {} if registry is None else registry["shards"].get(shard.shard, {})
    return {
        "shard": shard.shard,
        "slots": slots_text(shard.slots),
        "address": shard.leader,
        "epoch": shard.epoch,
        "events": figures.get("events"),
        "memory": figures.get("resident_bytes"),
        "files": figures.get("event_files"),
        "sorted": figures.get("sorted_files"),
        "behind": behind_text(figures.get("replicas_behind")),
        "said": said_of(figures, known),
        "known": known,
    }


def said_of(figures: dict[str, Scalar], known: dict[str, Any]) -> list[Any]:
    """Returns what an operator has to know of a shard, without repetitions: from the shard itself, and from the registry."""
    return list(dict.fromkeys(filter(None, (figures.get("attention"), known.get("trouble")))))


def behind_text(figure: Scalar) -> str | None:
    """Returns how far each other replica is behind, the furthest first; None: the shard does not say."""
    try:
        found = [(-float(each["seconds"]), node, each["bytes"]) for node, each in json.loads(str(figure)).items()]
    except (ValueError, TypeError, KeyError, AttributeError):  # of a server of another version
        return None
    return ", ".join(
        f"{node} away {span(-late)}" if lacks is None else f"{node} {span(-late)} {size(lacks)}"
        for late, node, lacks in sorted(found)
    )
