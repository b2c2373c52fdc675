"""The broker: topics, queues, groups and their members, messages, dead letters and chunks."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

import trio
from starlette.responses import Response
from starlette.routing import Route

from eventstore.client.aio.store import NetworkStore
from eventstore.console.console import Console, Visit, broker_of, link, number_of, route, time_of
from eventstore.errors import EventStoreError, PermissionDenied, UnknownOperation, UnknownTopic
from eventstore.protocol.broker_info import GroupQueue, last_chunks
from eventstore.records.message import Message
from eventstore.security.permissions import Permission

ROWS_MAX: Final = 50
_LAGS_MAX: Final = 20
_CHUNKS_MAX: Final = 10
_MESSAGES_MAX: Final = 20


def broker_routes(console: Console) -> list[Route]:
    """Returns the routes."""
    return [
        route(console, "/broker", _broker),
        route(console, "/broker/topic", _topic),
        route(console, "/broker/group", _group),
        route(console, "/broker/messages", _messages),
    ]


async def _broker(visit: Visit) -> Response:
    after, group_after = visit.asked("after"), visit.asked("group_after")

    async def find(store: NetworkStore) -> dict[str, Any] | None:
        try:
            topics, groups = await store.broker.topics(), await store.broker.groups()
        except UnknownOperation:  # a server without a broker
            return None
        shown = [each for each in sorted(topics) if each.name > after][:ROWS_MAX]
        shown_groups = [each for each in sorted(groups) if each.name > group_after][:ROWS_MAX]
        queues = await _each(lambda name: store.broker.queues(name), [each.name for each in shown])
        progress = await _each(lambda name: store.broker.group(name), [each.name for each in shown_groups])
        return {
            "topics": [(each, _sums(queues.get(each.name, []))) for each in shown],
            "groups": [(each, progress.get(each.name)) for each in shown_groups],
            "chunks": last_chunks(await store.broker.chunks(), _CHUNKS_MAX)[::-1] if topics else [],
            "more_topics": link("/broker", after=shown[-1].name) if shown and shown[-1].name < max(topics).name else None,
            "more_groups": link("/broker", group_after=shown_groups[-1].name)
            if shown_groups and shown_groups[-1].name < max(groups).name
            else None,
        }

    return visit.page("broker.html", found=await visit.ask(find), may_create=visit.may(Permission.TOPICS), link=link)


async def _each(ask: Any, names: list[str]) -> dict[str, Any]:
    """Asks for each name, all at once. Leaves out a name that is gone meanwhile."""
    found: dict[str, Any] = {}

    async def one(name: str) -> None:
        try:
            found[name] = await ask(name)
        except EventStoreError as error:
            if not type(error).__name__.startswith("Unknown"):
                raise

    try:
        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(one, name)
    except* EventStoreError as failed:
        raise failed.exceptions[0] from None
    return found


def _sums(queues: list[Any]) -> dict[str, int]:
    return {
        "messages": sum(each.end - each.begin for each in queues),
        **{name: sum(getattr(each, name) for each in queues) for name in ("written", "written_bytes", "read", "read_bytes")},
    }


async def _topic(visit: Visit) -> Response:
    name = visit.asked("name")
    queues = await visit.ask(lambda store: store.broker.queues(name))
    return visit.page(
        "topic.html", name=name, queues=queues, may_change=visit.may(Permission.TOPICS, name) and ":" not in name, link=link
    )


async def _group(visit: Visit) -> Response:
    name, dead_from, dead_shard = visit.asked("name"), visit.number("dead_from") or 0, visit.number("dead_shard")

    async def find(store: NetworkStore) -> dict[str, Any]:
        broker = store.broker
        progress = await broker.group(name)
        behind = [each for each in progress.queues if each.backlog][:_LAGS_MAX]
        lags = await _lags(store, behind)
        dead: list[tuple[int | None, list[Message]]] = []
        replayed: set[tuple[int | None, int]] = set()
        for shard in _shards(store) if dead_shard is None else [dead_shard]:
            with suppress(UnknownTopic, PermissionDenied):  # none has failed yet; or the page is without them
                letters = await broker_of(store, shard).dead_letters(name, dead_from, _MESSAGES_MAX)
                dead.append((shard, letters))
                for first, end in await broker_of(store, shard).replayed(name):
                    replayed |= {(shard, each.queue_offset) for each in letters if first <= each.queue_offset < end}
        return {
            "progress": progress,
            "lags": lags,
            "members": await broker.members(name),
            "gone": await broker.departures(name),
            "retries": await broker.retries(name),
            "hands": {each.member: each for each in await broker.in_hand(name)},
            "dead": dead,
            "replayed": replayed,
        }

    found = await visit.ask(find)
    more = [
        (shard, link("/broker/group", name=name, dead_from=letters[-1].queue_offset + 1, **_named(dead_shard=shard)))
        for shard, letters in found["dead"]
        if len(letters) == _MESSAGES_MAX
    ]
    return visit.page(
        "group.html",
        name=name,
        **found,
        more=more,
        may_change=visit.may(Permission.GROUPS, name),
        topics=sorted({each.topic for each in found["progress"].queues}),
        link=link,
    )


def _shards(store: NetworkStore) -> list[int | None]:
    """Returns the shards whose queues and dead letters are listed by themselves; None: there is only one."""
    return [*store.shards] if len(store.shards) > 1 else [None]


def _named(**parameters: int | None) -> dict[str, int]:
    return {name: value for name, value in parameters.items() if value is not None}


async def _lags(store: NetworkStore, queues: list[GroupQueue]) -> dict[tuple[int | None, str, int], float]:
    """Returns for how many seconds the next message of each queue has waited, where the visitor may see it."""
    found: dict[tuple[int | None, str, int], float] = {}
    for each in queues:
        try:
            message = await broker_of(store, each.shard).message_at(each.topic, each.queue, max(each.offset, each.begin))
        except EventStoreError:  # not permitted, or gone meanwhile
            continue
        if message is not None:
            found[each.shard, each.topic, each.queue] = max(0.0, datetime.now(UTC).timestamp() - message.timestamp / 1e6)
    return found


async def _messages(visit: Visit) -> Response:
    topic, queue, shard = visit.asked("topic"), visit.number("queue") or 0, visit.number("shard")
    by, wanted = visit.asked("by"), visit.asked("wanted")

    async def find(store: NetworkStore) -> list[Message | None]:
        broker = store.broker
        if by == "id":
            return [await broker.message(wanted)]
        if by == "key":
            return [*await broker.messages_of_key(topic, wanted, _MESSAGES_MAX)]
        broker = broker_of(store, shard)
        offset = await broker.offset_at(topic, queue, time_of(wanted)) if by == "time" else number_of("offset", wanted) or 0
        return [await broker.message_at(topic, queue, each) for each in range(offset, offset + _MESSAGES_MAX)]

    found = [each for each in await visit.ask(find) if each is not None]
    later = None
    if by in ("offset", "time") and len(found) == _MESSAGES_MAX:
        of_queue = {"topic": topic, "queue": queue, **_named(shard=shard)}
        later = link("/broker/messages", **of_queue, by="offset", wanted=found[-1].queue_offset + 1)
    return visit.page(
        "messages.html", found=found, topic=topic, queue=queue, shard=shard, by=by, wanted=wanted, later=later, link=link
    )
