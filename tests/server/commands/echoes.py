"""A domain for tests of reactions: each call is echoed by another aggregate, unless a test makes the reaction fail."""

from __future__ import annotations

from dataclasses import dataclass

import eventstore.domain as d

failing: dict[str, str] = {}
"""The error that the reaction to a caller's calls raises; it runs in another thread than the test."""


@dataclass(frozen=True)
class Call:
    caller: str
    number: int


@dataclass(frozen=True)
class Echo:
    echo: str
    number: int


@dataclass(frozen=True)
class Called:
    number: int


@dataclass(frozen=True)
class Echoed:
    number: int


class Caller(d.Aggregate):
    @d.applies(Called)
    def _(self, event: Called) -> None:
        """Only that it happened."""

    @d.applies(Echoed)
    def _(self, event: Echoed) -> None:
        """Only that it happened."""


app = d.Domain()


@app.handles(Call)
def call(command: Call, caller: Caller) -> None:
    caller.apply(Called(command.number))


@app.handles(Echo)
def echo_call(command: Echo, caller: Caller) -> None:
    caller.apply(Echoed(command.number), metadata={"number": command.number})


@app.reacts(Called)
async def echo(event: Called, send: d.Send) -> None:
    caller = send.cause.aggregate_id
    if caller in failing:
        raise ValueError(failing[caller])
    await send(Echo(f"echo-{caller}", event.number))
