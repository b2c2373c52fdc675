"""A domain whose handler never ends, for commands that wait."""

from __future__ import annotations

from dataclasses import dataclass

import trio

import eventstore.domain as d


@dataclass(frozen=True)
class Hold:
    name: str
    text: str


@dataclass(frozen=True)
class Held:
    text: str


class Holder(d.Aggregate):
    @d.applies(Held)
    def _(self, event: Held) -> None: ...


domain = d.Domain()


@domain.handles(Hold)
async def hold(command: Hold, holder: Holder) -> None:
    await trio.sleep_forever()
