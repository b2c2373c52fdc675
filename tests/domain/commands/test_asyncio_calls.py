"""Handlers and reactions written for asyncio: refused by name where they would run on trio, or explained when they fail."""

from __future__ import annotations

import asyncio
from asyncio import sleep
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import anyio.lowlevel
import pytest
import trio

import eventstore as es
import eventstore.domain as d
from eventstore.domain.aggregate import new
from eventstore.domain.asyncio_calls import refuse_asyncio
from tests.domain.things import Do, Thing


@dataclass(frozen=True)
class Rang:
    times: int


async def by_module(command: Do, thing: Thing) -> None:
    await asyncio.sleep(0.1)


async def by_name(command: Do, thing: Thing) -> None:
    await sleep(0.1)


async def in_a_group(command: Do, thing: Thing) -> None:
    async with asyncio.timeout(1):
        await anyio.lowlevel.checkpoint()


async def for_both(command: Do, thing: Thing) -> None:
    try:
        await anyio.lowlevel.checkpoint()
    except asyncio.CancelledError:
        raise


async def hidden(command: Do, thing: Thing) -> None:
    await by_name(command, thing)


async def react(event: Rang, send: d.Send) -> None:
    await asyncio.gather()


def with_handler(function: Callable[[Any, Any], Awaitable[None]]) -> d.Domain:
    app = d.Domain()
    app.handles(Do)(function)
    return app


@pytest.mark.parametrize(("function", "called"), [(by_module, "sleep"), (by_name, "sleep"), (in_a_group, "timeout")])
def test_a_handler_that_calls_asyncio_is_refused_with_the_call_and_the_way_out(
    function: Callable[[Any, Any], Awaitable[None]], called: str
) -> None:
    said = rf"test_asyncio_calls.{function.__name__} calls asyncio.{called}; .* run on trio.* anyio"  # type: ignore[attr-defined]
    with pytest.raises(es.DomainRefused, match=said) as caught:
        refuse_asyncio(with_handler(function), reactions=False)
    assert caught.value.fields["call"] == called


def test_a_reaction_is_refused_where_it_would_run() -> None:
    app = with_handler(for_both)
    app.reacts(Rang)(react)
    refuse_asyncio(app, reactions=False)
    with pytest.raises(es.DomainRefused, match=r"reaction react calls asyncio.gather"):
        refuse_asyncio(app, reactions=True)


def test_a_call_that_is_found_only_when_it_runs_names_handler_and_way_out() -> None:
    app = with_handler(hidden)
    refuse_asyncio(app, reactions=True)
    handled = trio.run(app.handler("Do").run_async, Do("t-1"), new(Thing, "t-1"))
    assert isinstance(handled.error, es.HandlerFailed)
    assert "hidden raised RuntimeError: no running event loop; servers and workers run on trio" in handled.error.message
