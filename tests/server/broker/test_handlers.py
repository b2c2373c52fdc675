"""Handlers are found by the class of their request: each request to the broker has one."""

from __future__ import annotations

from collections import Counter

from eventstore.protocol.broker_requests import BrokerRequest, Pull, SendMessages
from eventstore.protocol.request_declaration import DECLARATIONS
from eventstore.server.broker.group_handlers import GroupHandlers
from eventstore.server.broker.lookup_handlers import LookupHandlers
from eventstore.server.broker.topic_handlers import TopicHandlers


def test_every_request_to_the_broker_has_exactly_one_handler() -> None:
    marks = [
        method._answers[0]
        for handlers in (GroupHandlers, TopicHandlers, LookupHandlers)
        for method in vars(handlers).values()
        if hasattr(method, "_answers")
    ]
    declared = {kind for kind in DECLARATIONS if issubclass(kind, BrokerRequest)}
    assert Counter([*marks, SendMessages, Pull]) == Counter(declared)
