"""Changes that are persisted together: what a store sees of the mailboxes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeAlias, TypeVar

X = TypeVar("X")
O = TypeVar("O")  # noqa: E741 - change, outcome

Ended: TypeAlias = Callable[["Batch[X, O]", "Sequence[O] | BaseException"], None]


class Batch(Generic[X, O]):
    """changes    in order; not to be changed
    followers  ascending places of changes that rest on an earlier one of the same aggregate in this batch: to be committed only
               where the change before it, by its command id, is the aggregate's latest; else CONFLICT. What the store has
               already is DUPLICATE, follower or not
    source     whose change it is, if there is only one sender; else the batch itself
    """

    __slots__ = ("_ended", "changes", "followers", "source")

    def __init__(self, changes: list[X], followers: list[int], ended: Ended[X, O], source: object = None) -> None:
        self.changes = changes
        self.followers = followers
        self.source = self if source is None else source
        self._ended: Ended[X, O] | None = ended

    def deliver(self, outcomes: Sequence[O]) -> None:
        """One outcome per change, in order. Whatever comes after the first `deliver` or `fail` is ignored."""
        ended, self._ended = self._ended, None
        if ended is not None:
            ended(self, outcomes)

    def fail(self, error: BaseException) -> None:
        """What became of the changes is not known; the mailboxes persist them again after a while, with the same command
        ids."""
        ended, self._ended = self._ended, None
        if ended is not None:
            ended(self, error)


AnyBatch: TypeAlias = Batch[object, object]
