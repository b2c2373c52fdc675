"""All places where tracing begins: which methods are replaced, and by what. A module that is not imported yet is changed when
it is, so that a client does not load a server for this.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final, NamedTuple

import wrapt

from eventstore.tracing import calls


class Point(NamedTuple):
    """A method, or function, and the function that returns what replaces it: `module:name`, of `eventstore.tracing`."""

    module: str
    path: str
    wrapper: Any


def _stores(module: str, store: str) -> tuple[Point, ...]:
    return (
        Point(module, f"{store}.append", calls.append),
        Point(module, f"{store}.append_many", calls.append_many),
        Point(module, f"{store}.commit", calls.commit),
    )


def _senders(module: str, store: str) -> tuple[Point, ...]:
    return (Point(module, f"{store}.send", calls.send), Point(module, f"{store}.send_many", calls.send_many))


def _topics(module: str, topic: str) -> tuple[Point, ...]:
    return (Point(module, f"{topic}.send", calls.send_message), Point(module, f"{topic}.send_many", calls.send_messages))


POINTS: Final = (
    *_stores("eventstore.client.aio.store", "NetworkStore"),
    *_senders("eventstore.client.aio.store", "NetworkStore"),
    *_topics("eventstore.client.aio.topic", "NetworkTopic"),
    *_stores("eventstore.client.blocking.store", "BlockingStore"),
    *_senders("eventstore.client.blocking.store", "BlockingStore"),
    *_topics("eventstore.client.blocking.topic", "BlockingTopic"),
    *_stores("eventstore.store.embedded", "EmbeddedStore"),
    Point("eventstore.store.engine", "StoreEngine.take", "commits:taken"),
    Point("eventstore.store.engine", "StoreEngine.mark_written", "commits:written"),
    Point("eventstore.store.engine", "StoreEngine.roll_back", "commits:rolled_back"),
    Point("eventstore.domain.runtime", "DomainRuntime.handle", "followers:handle"),
    Point("eventstore.domain.runtime", "DomainRuntime.handle_jointly", "followers:handle"),
    Point("eventstore.domain.decisions", "Decisions.handle", "followers:handle"),
    Point("eventstore.domain.reactions.reactor", "ReactionRun._run", "followers:react"),
    Point("eventstore.domain.reactions.reactor", "ReactionRun._sent", "followers:reaction_sends"),
    Point("eventstore.domain.projections.line", "advance", "followers:project"),
    Point("eventstore.server.outbox.outbox", "Outbox._send", "followers:publish"),
    Point("eventstore.records.event_message", "EventMessages.of", "followers:messages_made"),
    Point("eventstore.records.event_message", "EventMessages.made_from", "followers:message_made"),
    Point("eventstore.client.consumer.member_state", "MemberState.next_pull", "followers:next_pull"),
    Point("eventstore.client.consumer.member_state", "MemberState.received", "followers:receive"),
    Point("eventstore.client.aio.consumer", "run_handler", "followers:run_handler"),
    Point("eventstore.client.blocking.consumer", "run_handler", "followers:run_handler"),
)

_lock: Final = threading.RLock()
_replaced: Final[dict[Point, tuple[Any, Any]]] = {}
"""What was replaced: its owner, and what was there."""
_state: Final = {"started": False, "hooked": False}


def start(*, begin: bool = True) -> None:
    """Replaces the methods of all points by such as make spans, of the tracer provider that the program sets, before or after.
    Does nothing the second time. Stores, consumers and servers that are open already go on without spans in part: call it
    first.

    `begin`: whether an append, a command or a message begins a trace where none is current; if not, only what happens inside a
    span of the program is traced.
    """
    with _lock:
        calls.traces_begin = begin
        if _state["started"]:
            return
        _state["started"] = True
        if not _state["hooked"]:
            _state["hooked"] = True
            for module in dict.fromkeys(point.module for point in POINTS):
                wrapt.register_post_import_hook(_imported, module)  # at once, if it is imported
        else:
            import sys

            for module in dict.fromkeys(point.module for point in POINTS):
                if module in sys.modules:
                    _imported(sys.modules[module])


def stop() -> None:
    """Puts back what was there before `start`."""
    with _lock:
        _state["started"] = False
        for point, (owner, original) in _replaced.items():
            setattr(owner, point.path.rpartition(".")[2], original)
        _replaced.clear()


def _imported(module: ModuleType) -> None:
    with _lock:
        if not _state["started"]:
            return
        for point in POINTS:
            if point.module == module.__name__ and point not in _replaced:
                *owners, name = point.path.split(".")
                owner: Any = module
                for each in owners:
                    owner = getattr(owner, each)
                original = getattr(owner, name)
                _replaced[point] = owner, original
                setattr(owner, name, _wrapper(point)(original))


def _wrapper(point: Point) -> Callable[[Any], Any]:
    if not isinstance(point.wrapper, str):
        return point.wrapper  # type: ignore[no-any-return]
    module, _, name = point.wrapper.partition(":")
    return getattr(importlib.import_module(f"eventstore.tracing.{module}"), name)  # type: ignore[no-any-return]
