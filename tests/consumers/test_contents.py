"""What a delivered message holds, with each client: JSON, and the event that it was published from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

import eventstore as es
import eventstore.domain as d
from eventstore.records.event_message import METADATA_TEXT_BYTES_MAX
from tests.consumers.clients import World, take_done, with_each_client
from tests.waiting import eventually


async def published(world: World) -> None:
    """Returns once the topic of the events exists."""

    async def is_there() -> bool:
        return "events" in [topic.name for topic in await world.store.broker.topics()]

    await eventually(is_there, "the topic of the events is created")


async def received(world: World, topic: str, count: int) -> list[Any]:
    async with world.store.consumer("billing", topic) as consumer:
        return await take_done(consumer, count)


@with_each_client
async def test_a_body_is_read_as_json_and_refused_with_its_place_if_it_is_none(world: World) -> None:
    topic = await world.create(queues=1)
    await topic.send_many([b'{"total":12}', b"no", b""])
    first, second, third = await received(world, "orders", 3)
    assert first.json() == {"total": 12}
    for message in (second, third):
        with pytest.raises(es.PayloadInvalid, match=r"topic 'orders', queue 0, offset [12] has a body") as refused:
            message.json()
        assert {"topic": "orders", "queue": 0, "offset": message.queue_offset}.items() <= refused.value.fields.items()
    with pytest.raises(es.PayloadInvalid, match="topic 'orders', queue 0, offset 0 is not a published event"):
        first.event()


@with_each_client(publish="events")
async def test_a_published_message_is_the_stored_event_again_also_after_a_failure(world: World) -> None:
    if world.kind == "blocking":
        with es.blocking.connect(world.server.address) as store:
            store.append("a", NEW, 0)
            expected = list(store.read("a"))
    else:
        await world.store.append("a", NEW, 0)
        expected = [event async for event in world.store.read("a")]
    await published(world)
    async with world.store.consumer("billing", "events") as consumer:
        found = [await anext(consumer) for _ in NEW]
        assert [message.event() for message in found] == expected
        for message in found[1:]:
            message.done()
        found[0].retry("later")
        again = await anext(consumer)
        assert (again.event(), again.times_failed) == (expected[0], 1)
        again.done()


NEW = [
    es.NewEvent("Paid", {"total": 12}, {"correlation_id": "order-7", "by": "ä"}),
    es.NewEvent("Paid", b"\xff", b"\xfe"),
    es.NewEvent("|", b"", None, ["course:c1", 'ä"\\']),
    es.NewEvent("Paid", b"", {"correlation_id": "order-8"}, ["x"]),
]


@with_each_client(kinds=("trio",), publish="events")
async def test_metadata_that_are_too_large_for_a_message_are_missed_by_name(world: World) -> None:
    await world.store.append("a", [es.NewEvent("Paid", {}, {"x": "y" * METADATA_TEXT_BYTES_MAX})], 0)
    await published(world)
    (message,) = await received(world, "events", 1)
    with pytest.raises(es.PayloadInvalid, match=r"metadata: \d+ bytes .* version 1 of aggregate 'a' from the store") as missed:
        message.event()
    assert missed.value.fields["field"] == "metadata"


@pytest.mark.parametrize(
    "changed", [{"version": "x"}, {"version": "0"}, {"type": ""}, {"timestamp": "9" * 30}, {"metadata_base64": "?"}]
)
@with_each_client(kinds=("trio",))
async def test_properties_that_only_look_like_those_of_an_event_are_refused(world: World, changed: dict[str, str]) -> None:
    topic = await world.create(queues=1)
    good = {
        "store": "s", "sequence": "1", "version": "1", "type": "Paid", "command_id": "c", "timestamp": "1", "format": "json",
    }  # fmt: skip
    await topic.send(b"{}", key="a", properties=good)
    await topic.send(b"{}", key="a", properties={**good, **changed})
    await topic.send(b"{}", key="a", properties={name: value for name, value in good.items() if name != "type"})
    first, *others = await received(world, "orders", 3)
    assert first.event().type == "Paid"
    for message in others:
        with pytest.raises(es.PayloadInvalid, match="is not a published event"):
            message.event()


@d.event("Contents.Paid", version=2)
@dataclass(frozen=True)
class Paid:
    cents: int


@d.upcast("Contents.Paid", version=1)
def _(fields: dict[str, object]) -> dict[str, object]:
    return {"cents": fields["total"]}


class Account(d.Aggregate):
    @d.applies(Paid)
    def _(self, event: Paid) -> None:
        pass


@dataclass(frozen=True)
class Pay:
    account: str


@with_each_client(kinds=("trio",), publish="events")
async def test_a_domain_makes_a_published_event_an_instance_of_its_class_through_upcasts(world: World) -> None:
    app = d.Domain()
    await world.store.append("a", [es.NewEvent("Contents.Paid", {"total": 12}), es.NewEvent("Other")], 0)
    await published(world)
    first, other = [message.event() for message in await received(world, "events", 2)]
    with pytest.raises(es.UnknownEvent):
        app.decode_event(first)

    @app.handles(Pay)
    def pay(command: Pay, account: Account) -> None:
        pass

    assert app.decode_event(first) == Paid(12)
    with pytest.raises(es.UnknownEvent, match="'Other'"):
        app.decode_event(other)
