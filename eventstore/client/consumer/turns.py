"""Who may pull, of a consumer's members on several shards: a message that may kill the process is in hand alone, on all shards.

Each shard counts the deaths of its own member, and blames what that one held. So while a member has suspects, the others pull
nothing, and it pulls one only once they hold nothing. A member whose shard is away is not waited for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eventstore.client.consumer.suspects import Suspects


class Turns:
    """The members of one consumer, by their suspects. Belongs to the loop that pulls."""

    def __init__(self) -> None:
        self._members: dict[Suspects, Callable[[], None]] = {}
        self._taken = False

    def join(self, member: Suspects, wake: Callable[[], None]) -> None:
        """Takes a member; `wake` has it look again whether it may pull."""
        self._members[member] = wake

    def leave(self, member: Suspects) -> None:
        """Takes a member out: no pull waits for it any more."""
        self._members.pop(member, None)
        self.changed(member)

    def away(self, member: Suspects, is_away: bool) -> None:
        """Notes whether the member's shard is away, so that it can neither pull nor commit."""
        if member.is_away != is_away:
            member.is_away = is_away
            self.changed(member)

    def first(self) -> Suspects | None:
        """Returns the member that has suspects and pulls next; None if none has."""
        return next((each for each in self._members if not each.is_away and each.next() is not None), None)

    def others(self, member: Suspects) -> list[Suspects]:
        """Returns the members that this one waits for."""
        return [each for each in self._members if each is not member and not each.is_away]

    def changed(self, member: Suspects) -> None:
        """Has the others look again, if a member has suspects or had some until now. The tracker of this one may be locked."""
        if len(self._members) == 1 and member in self._members:
            return
        before, self._taken = self._taken, self.first() is not None
        if before or self._taken:
            for each, wake in list(self._members.items()):
                if each is not member:
                    wake()
