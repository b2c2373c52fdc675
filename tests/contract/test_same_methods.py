"""All ways to use a store have the same methods, with the same arguments, as the page of the client says."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import eventstore as es
from eventstore.client.aio.broker import NetworkBroker
from eventstore.client.aio.reactions import NetworkReactions
from eventstore.client.aio.routing import ShardsBroker, ShardsReactions
from eventstore.client.aio.routing.merged_events import MergedEvents
from eventstore.client.aio.routing.merged_subscription import MergedSubscription
from eventstore.client.aio.streams import NetworkLogStream, NetworkSubscriptionStream
from eventstore.client.blocking.broker import BlockingBroker
from eventstore.client.blocking.reactions import BlockingReactions
from eventstore.client.blocking.routing import BlockingMergedEvents, BlockingMergedSubscription
from eventstore.client.blocking.store import BlockingStore
from eventstore.client.blocking.streams import BlockingLogStream, BlockingSubscriptionStream
from eventstore.store.streams import EmbeddedLogStream, EmbeddedSubscriptionStream

PAGE = (Path(__file__).parents[2] / "docs" / "CLIENT.md").read_text(encoding="utf-8")
SENTENCE = re.search(r"All ways to use the store have the same methods for events: (.*?)\.", PAGE)
METHODS = re.findall(r"`(\w+)`", SENTENCE[1]) if SENTENCE else []
LIMITED = "timeout"


def public(cls: type) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_")}


def arguments(cls: type, method: str) -> dict[str, object]:
    """Returns the names of the arguments, with their defaults."""
    return {name: each.default for name, each in inspect.signature(getattr(cls, method)).parameters.items()}


@pytest.mark.parametrize("method", METHODS)
def test_a_method_of_events_has_the_same_arguments_in_all_ways(method: str) -> None:
    embedded, network, blocking = (arguments(cls, method) for cls in (es.EmbeddedStore, es.NetworkStore, BlockingStore))
    assert network == blocking
    assert network.pop(LIMITED) is None
    assert list(network.items()) == list(embedded.items())


def test_the_page_names_the_methods_of_events() -> None:
    assert len(METHODS) == 13


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (es.NetworkStore, BlockingStore),
        (NetworkBroker, ShardsBroker),
        (NetworkBroker, BlockingBroker),
        (NetworkReactions, ShardsReactions),
        (NetworkReactions, BlockingReactions),
    ],
)
def test_a_client_has_the_same_methods_async_and_blocking_at_one_server_and_over_shards(one: type, other: type) -> None:
    assert public(one) - {"aclose"} == public(other) - {"close"}
    for name in sorted(public(one) - {"aclose"}):
        if inspect.isfunction(getattr(one, name)):
            assert list(arguments(one, name)) == list(arguments(other, name)), name


@pytest.mark.parametrize(
    ("kinds", "wanted"),
    [
        ((EmbeddedLogStream, NetworkLogStream, MergedEvents, BlockingLogStream, BlockingMergedEvents), {"position"}),
        (
            (
                EmbeddedSubscriptionStream,
                NetworkSubscriptionStream,
                MergedSubscription,
                BlockingSubscriptionStream,
                BlockingMergedSubscription,
            ),
            {"position", "resumptions"},
        ),
    ],
)
def test_a_stream_says_where_it_is_in_all_ways(kinds: tuple[type, ...], wanted: set[str]) -> None:
    for kind in kinds:
        assert wanted <= public(kind), kind
        assert {"close", "aclose"} & public(kind), kind
