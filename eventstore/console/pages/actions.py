"""The actions of the console. Each action asks again, and is a request with the visitor's permission, like any other.

An action is a link with its fields; the page that it leads to says what will happen and has the form that does it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

import trio
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from eventstore.client.aio.store import NetworkStore
from eventstore.console.console import Console, Visit, broker_of, link, number_of, route, time_of
from eventstore.console.subject import ClusterDoor
from eventstore.errors import InvalidArgument
from eventstore.records.consumer_groups import Retries
from eventstore.security.permissions import Permission, denied

Fields = Mapping[str, str]
_WHY: Final = "console"
_NO_ONE: Final = "console (not signed in)"


@dataclass(frozen=True, slots=True)
class ConsoleAction:
    """An action.

    Attributes:
        fields: what it needs; `why` is asked for on the page.
        says: returns what will happen.
        do: does it in the name of its last argument, and returns what has happened; None if `on_cluster` does it.
        back: returns the page to go to then.
        on_cluster: does it at the node, instead of a request.
    """

    fields: tuple[str, ...]
    says: Callable[[Fields], str]
    do: Callable[[NetworkStore, Fields, str], Awaitable[str]] | None
    back: Callable[[Fields], str]
    on_cluster: Callable[[ClusterDoor, Fields, str], str] | None = None


def _number(given: Fields, name: str) -> int:
    found = number_of(name, given[name])
    if found is None:
        raise InvalidArgument(f"{name} is missing", field=name)
    return found


async def _reset(store: NetworkStore, given: Fields, who: str) -> str:
    to = given["to"]
    target = to if to in ("start", "end") else int(to) if to.isascii() and to.isdigit() else time_of(to)
    queue = number_of("queue", given["queue"])
    broker = broker_of(store, number_of("shard", given["shard"]))
    rows = await broker.reset(given["group"], given["topic"], target, queue=queue)
    return f"{given['group']} is at " + ", ".join(f"offset {each.offset} of queue {each.queue}" for each in rows[:20])


async def _replay_dead(store: NetworkStore, given: Fields, who: str) -> str:
    broker = broker_of(store, number_of("shard", given["shard"]))
    count = await broker.replay(given["group"], [_number(given, "offset")])
    return f"{count} dead letters of {given['group']} are delivered again"


async def _add_queues(store: NetworkStore, given: Fields, who: str) -> str:
    added = await store.broker.add_queues(given["topic"], _number(given, "count"))
    return f"{given['topic']} has {len(added)} more queues"


async def _create_topic(store: NetworkStore, given: Fields, who: str) -> str:
    await store.broker.create_topic(given["topic"], number_of("queues", given["queues"]))
    return f"the topic {given['topic']} is created"


async def _delete_topic(store: NetworkStore, given: Fields, who: str) -> str:
    await store.broker.delete_topic(given["topic"], ignore_unconsumed=given["unconsumed"] == "delete")
    return f"the topic {given['topic']} is deleted"


async def _remove_queue(store: NetworkStore, given: Fields, who: str) -> str:
    await store.broker.remove_queue(given["topic"], _number(given, "queue"))
    return f"queue {given['queue']} of {given['topic']} is removed"


async def _set_retries(store: NetworkStore, given: Fields, who: str) -> str:
    retries = Retries(_delays(given["delays"]), number_of("attempts", given["attempts"]), given["dead_letters"] or None)
    await store.broker.set_retries(given["group"], retries)
    return f"{given['group']} has a retry policy of its own"


async def _unset_retries(store: NetworkStore, given: Fields, who: str) -> str:
    await store.broker.set_retries(given["group"], None)
    return f"{given['group']} has the retry policy of the server"


def _delays(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(each) for each in text.replace(" ", "").split(",") if each)
    except ValueError:
        raise InvalidArgument(
            f"delays is {text[:40]!r}, expected seconds with commas between them, such as 1, 5, 30",
            field="delays",
            value=text[:40],
        ) from None


async def _close_queue(store: NetworkStore, given: Fields, who: str) -> str:
    await store.broker.close_queue(given["topic"], _number(given, "queue"))
    return f"queue {given['queue']} of {given['topic']} accepts no more messages"


async def _retry(store: NetworkStore, given: Fields, who: str) -> str:
    done = await store.reactions.retry(given["reaction"], given["aggregate"] or None, who=who, why=given["why"] or _WHY)
    return f"{given['reaction']}: {done.done} events are handled, {done.left} are still parked"


async def _skip(store: NetworkStore, given: Fields, who: str) -> str:
    done = await store.reactions.skip(given["reaction"], given["aggregate"], who=who, why=given["why"] or _WHY)
    return f"{given['reaction']}: {done.done} events are no longer parked, {done.left} still are"


async def _run_timer(store: NetworkStore, given: Fields, who: str) -> str:
    await store.run_now(given["aggregate"], given["timer"], who=who, why=given["why"] or _WHY)
    return f"{given['timer']} of {given['aggregate']} is due now"


async def _cancel_timer(store: NetworkStore, given: Fields, who: str) -> str:
    await store.cancel_later(given["aggregate"], given["timer"], who=who, why=given["why"] or _WHY)
    return f"{given['timer']} of {given['aggregate']} is cancelled"


async def _silence(store: NetworkStore, given: Fields, who: str) -> str:
    hours = _number(given, "hours")
    await store.alarms.silence(given["alarm"], hours * 3_600, who=who, why=given["why"] or _WHY)
    return f"{given['alarm']} is silenced for {hours} hours" if hours else f"{given['alarm']} is not silenced any more"


async def _test_alarms(store: NetworkStore, given: Fields, who: str) -> str:
    ways = await store.alarms.test(who=who)
    return f"a test is sent by {' and '.join(ways)}" if ways else "no way is set up by which alarms are sent"


def _on_shard(given: Fields) -> str:
    return f" on shard {given['shard']}" if given["shard"] else ""


def _of_shard(given: Fields) -> str:
    return f"of shard {given['shard']} " if given["shard"] else ""


def _group_page(given: Fields) -> str:
    return link("/broker/group", name=given["group"])


def _broker_page(given: Fields) -> str:
    return link("/broker")


def _topic_page(given: Fields) -> str:
    return link("/broker/topic", name=given["topic"])


def _reaction_page(given: Fields) -> str:
    return link("/reactions", name=given["reaction"])


def _timers_page(given: Fields) -> str:
    return link("/timers", id=given["aggregate"])


def _alarms_page(given: Fields) -> str:
    return link("/alarms")


def _cluster_page(given: Fields) -> str:
    return link("/cluster")


ACTIONS: Final[Mapping[str, ConsoleAction]] = {
    "reset": ConsoleAction(
        ("group", "topic", "queue", "shard", "to"),
        lambda given: (
            f"The group {given['group']} continues at {given['to']} of "
            + (f"queue {given['queue']} of " if given["queue"] else "every queue of ")
            + f"{given['topic']}{_on_shard(given)}. "
            "Messages after that are delivered again, those before it never."
        ),
        _reset,
        _group_page,
    ),
    "replay": ConsoleAction(
        ("group", "offset", "shard"),
        lambda given: f"Dead letter {given['offset']}{_on_shard(given)} of {given['group']} is delivered again.",
        _replay_dead,
        _group_page,
    ),
    "add-queues": ConsoleAction(
        ("topic", "count"),
        lambda given: (
            f"The topic {given['topic']} gets {given['count']} more queues. Keys map to other queues from then on: "
            "the order of a key's messages is kept only among those sent after."
        ),
        _add_queues,
        _topic_page,
    ),
    "close-queue": ConsoleAction(
        ("topic", "queue"),
        lambda given: f"Queue {given['queue']} of {given['topic']} accepts no more messages; what it holds is still consumed.",
        _close_queue,
        _topic_page,
    ),
    "remove-queue": ConsoleAction(
        ("topic", "queue"),
        lambda given: (
            f"Queue {given['queue']} of {given['topic']} is removed with its messages. It is refused while a group has some to "
            "consume."
        ),
        _remove_queue,
        _topic_page,
    ),
    "create-topic": ConsoleAction(
        ("topic", "queues"),
        lambda given: (
            f"The topic {given['topic']} is created with {given['queues'] or 'as many queues as the server is set to'}"
            + (" queues." if given["queues"] else ".")
        ),
        _create_topic,
        _topic_page,
    ),
    "delete-topic": ConsoleAction(
        ("topic", "unconsumed"),
        lambda given: (
            f"The topic {given['topic']} is deleted with all its messages"
            + (
                ", also those that groups have not consumed."
                if given["unconsumed"] == "delete"
                else ", unless a group has some to consume."
            )
        ),
        _delete_topic,
        _broker_page,
    ),
    "set-retries": ConsoleAction(
        ("group", "delays", "attempts", "dead_letters"),
        lambda given: (
            f"A message that {given['group']} fails to handle is tried again after {given['delays'] or 'no'} seconds"
            + (f", {given['attempts']} times in all" if given["attempts"] else "")
            + f"; then it goes to {given['dead_letters'] or 'dead:' + given['group']}. Waiting ones, too."
        ),
        _set_retries,
        _group_page,
    ),
    "unset-retries": ConsoleAction(
        ("group",),
        lambda given: f"The group {given['group']} retries as the server is set to, no longer by a policy of its own.",
        _unset_retries,
        _group_page,
    ),
    "retry": ConsoleAction(
        ("reaction", "aggregate", "why"),
        lambda given: (
            f"The reaction {given['reaction']} handles what it has parked "
            + (f"of {given['aggregate']} " if given["aggregate"] else "")
            + "again."
        ),
        _retry,
        _reaction_page,
    ),
    "skip": ConsoleAction(
        ("reaction", "aggregate", "why"),
        lambda given: f"The reaction {given['reaction']} never handles the first event of {given['aggregate']} that is parked.",
        _skip,
        _reaction_page,
    ),
    "run-timer": ConsoleAction(
        ("aggregate", "timer", "why"),
        lambda given: f"The command of the timer {given['timer']} of {given['aggregate']} is sent now.",
        _run_timer,
        _timers_page,
    ),
    "cancel-timer": ConsoleAction(
        ("aggregate", "timer", "why"),
        lambda given: f"The command of the timer {given['timer']} of {given['aggregate']} is never sent.",
        _cancel_timer,
        _timers_page,
    ),
    "silence": ConsoleAction(
        ("alarm", "hours", "why"),
        lambda given: (
            f"No notice of the alarm {given['alarm']} is sent for {given['hours']} hours; the pages still show it."
            if given["hours"] != "0"
            else f"Notices of the alarm {given['alarm']} are sent again."
        ),
        _silence,
        _alarms_page,
    ),
    "test-alarms": ConsoleAction(
        (), lambda given: "A test is sent by mail and to the webhook, as far as they are set up.", _test_alarms, _alarms_page
    ),
    "lead": ConsoleAction(
        ("shard", "node"),
        lambda given: f"Shard {given['shard']} is led by {given['node']} from then on; writers wait for about 0.25 s.",
        None,
        _cluster_page,
        lambda door, given, who: door.hand_over(_number(given, "shard"), given["node"], who),
    ),
    "cancel": ConsoleAction(
        ("shard",),
        lambda given: f"What is wanted of shard {given['shard']} and not done is taken back; what was copied is put away.",
        None,
        _cluster_page,
        lambda door, given, who: door.take_back(_number(given, "shard"), who),
    ),
    "pause": ConsoleAction(
        ("shard",),
        lambda given: (
            f"No replica {_of_shard(given)}is copied or taken out"
            + (
                f", and it is not split, until shard {given['shard']} is resumed by itself"
                if given["shard"]
                else " until moves are resumed"
            )
            + ". A hand-over that is wanted already is still done. "
            + ("It continues to serve." if given["shard"] else "All shards continue to serve.")
        ),
        None,
        _cluster_page,
        lambda door, given, who: door.pause(True, number_of("shard", given["shard"]), who),
    ),
    "resume": ConsoleAction(
        ("shard",),
        lambda given: f"What is wanted {_of_shard(given) or 'of shards '}is carried out again.",
        None,
        _cluster_page,
        lambda door, given, who: door.pause(False, number_of("shard", given["shard"]), who),
    ),
}


def action_routes(console: Console) -> list[Route]:
    """Returns the routes."""
    return [route(console, "/do/{action}", _ask), route(console, "/do/{action}", _do, ("POST",))]


async def _ask(visit: Visit) -> Response:
    name, action = _action(visit)
    given = {field: visit.asked(field) for field in action.fields}
    return visit.page("confirm.html", action=name, given=given, says=action.says(given), back=action.back(given))


async def _do(visit: Visit) -> Response:
    _, action = _action(visit)
    given = {field: visit.form.get(field, "").strip() for field in action.fields}
    done = await _carried_out(visit, action, given)
    back = action.back(given)
    return RedirectResponse(f"{back}{'&' if '?' in back else '?'}{link('', done=done).partition('?')[2]}", 303)


async def _carried_out(visit: Visit, action: ConsoleAction, given: Fields) -> str:
    """Does the action; returns what has happened. Raises the errors of the server or the node, and PermissionDenied."""
    who = visit.visitor.name or _NO_ONE
    do, on_cluster, cluster = action.do, action.on_cluster, visit.console.subject.cluster
    if do is not None:
        return await visit.ask(lambda store: do(store, given, who))
    if on_cluster is None or cluster is None:
        raise InvalidArgument("this server is in no cluster with replicas", field="action")
    if not visit.may(Permission.CLUSTER):
        raise denied(Permission.CLUSTER)
    return await trio.to_thread.run_sync(on_cluster, cluster, given, who, abandon_on_cancel=True)


def _action(visit: Visit) -> tuple[str, ConsoleAction]:
    name = visit.request.path_params["action"]
    if name not in ACTIONS:
        raise InvalidArgument(f"there is no action {name[:40]!r}", field="action")
    return name, ACTIONS[name]
