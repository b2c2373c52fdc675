"""Reactions and publications side by side, for operators: what parks events is listed, shown, retried and skipped alike.

A publication is `topic:NAME`, which cannot be the name of a reaction.
"""

from __future__ import annotations

from eventstore.errors import InvalidArgument
from eventstore.fields import shown
from eventstore.protocol.reaction_info import ReactionInfo
from eventstore.records.parking_record import TOPIC
from eventstore.server.outbox.publishing import Publishing
from eventstore.server.reactions.reaction_runner import Reactions, ReactionsByName


class WithPublications(ReactionsByName):
    """As the reactions, whose methods it has; publications come after them."""

    def __init__(self, reactions: Reactions, publishing: Publishing) -> None:
        self._reactions = reactions
        self._publishing = publishing

    @property
    def attention(self) -> str | None:
        return self._reactions.attention or self._publishing.attention

    @property
    def passed_over(self) -> int:
        return max(self._reactions.passed_over, self._publishing.passed_over)

    def progress(self) -> list[ReactionInfo]:
        return self._reactions.progress() + self._publishing.progress()

    def _named(self, name: str) -> tuple[Reactions, str]:
        """Returns what has this one. Raises InvalidArgument: nothing has; the error names all there are, of both kinds."""
        names = [each.name for each in self.progress()]
        if name not in names:
            what = "publication" if name.startswith(TOPIC) else "reaction"
            there_are = ", ".join(names[:20]) or "none"
            raise InvalidArgument(
                f"there is no {what} {shown(name)}; there are: {there_are}", field="reaction", value=shown(name)
            )
        return self._publishing if name.startswith(TOPIC) else self._reactions, name
