"""Reactions and publications side by side, for operators: what parks events is listed, shown, retried and skipped alike.

A publication is `topic:NAME`, which cannot be the name of a reaction.
"""

from __future__ import annotations

from eventstore.domain.reactions.parked import TOPIC, Parked
from eventstore.errors import InvalidArgument
from eventstore.server.outbox.publishing import Publishing
from eventstore.server.reactions.reaction_runner import Progress, Reactions


class WithPublications:
    """As the reactions, whose methods it has; publications come after them."""

    def __init__(self, reactions: Reactions, publishing: Publishing) -> None:
        self._reactions = reactions
        self._publishing = publishing

    @property
    def attention(self) -> str | None:
        return self._reactions.attention or self._publishing.attention

    def progress(self) -> list[Progress]:
        return self._reactions.progress() + self._publishing.progress()

    def parked(self, name: str) -> list[Parked]:
        return self._publishing.parked(name) if _is_publication(name) else self._reactions.parked(name)

    async def retry(self, name: str, aggregate_id: str | None, who: str, why: str) -> int:
        if _is_publication(name):
            return await self._publishing.retry(name, aggregate_id, who, why)
        return await self._reactions.retry(name, aggregate_id, who, why)

    async def skip(self, name: str, aggregate_id: str, who: str, why: str) -> int:
        if _is_publication(name):
            return await self._publishing.skip(name, aggregate_id, who, why)
        return await self._reactions.skip(name, aggregate_id, who, why)

    async def replay(self, name: str, sequence: int, who: str, why: str) -> int:
        if _is_publication(name):
            raise InvalidArgument(
                f"{name} is not set back: what a topic ends with says how far it is; delete the topic, and it gets all events",
                field="reaction",
            )
        return await self._reactions.replay(name, sequence, who, why)


def _is_publication(name: str) -> bool:
    return name.startswith(TOPIC)
