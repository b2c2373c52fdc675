"""Errors of the mailboxes. They know nothing of the store's errors: the caller that connects both translates."""

from __future__ import annotations

from typing import Any


class MailboxError(Exception):
    """Base of the errors that this package raises."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles and copies all that the error holds: `Exception` would call the class with the message alone."""
        return _restored, (self.__class__, self.args), vars(self).copy()


def _restored(cls: type[MailboxError], args: tuple[object, ...]) -> MailboxError:
    error = cls.__new__(cls)
    error.args = args
    return error


class MailboxFull(MailboxError):
    """A mailbox is full, of commands or bytes (`unit`); the command was not accepted and may be sent again later."""

    def __init__(self, mailbox: str, depth: int, capacity: int, unit: str = "commands") -> None:
        super().__init__(f"{mailbox} holds {depth} {unit} of at most {capacity}; wait for room and send again")
        self.mailbox = mailbox
        self.depth = depth
        self.capacity = capacity


class Stopping(MailboxError):
    """The mailboxes accept no more commands; this one was not accepted."""

    def __init__(self) -> None:
        super().__init__("the mailboxes are stopping; the command was not accepted, send it again elsewhere or later")


class OfParent(Stopping):
    """The mailboxes belong to the process `parent`, which this one was forked from; the command was not accepted."""

    def __init__(self, parent: int) -> None:
        MailboxError.__init__(
            self,
            f"the mailboxes belong to process {parent}, which this one was forked from; the command was not accepted, make "
            "others here",
        )
        self.parent = parent


class Stopped(MailboxError):
    """The mailboxes ended before the command's outcome was known. Sent again with the same command id it takes effect once."""

    def __init__(self, aggregate_id: str, command_id: str) -> None:
        super().__init__(
            f"the mailboxes ended before the outcome of command {command_id!r} on {aggregate_id!r} was known; "
            "send it again with the same command id"
        )
        self.aggregate_id = aggregate_id
        self.command_id = command_id


class Unrestorable(MailboxError):
    """Raised by `Ports.restore` if a retry will not help: the command that needs the aggregate fails with `error`.

    Any other exception of `restore` means that the store cannot be reached; the restore is retried.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(f"the aggregate cannot be restored: {error}")
        self.error = error


class ChangesFirst(MailboxError):
    """Raised by `Ports.handle`, before it has changed anything, if a command depends on changes of its lane that are not stored
    yet. The command is handled once none of these is in flight, at once if none is.
    """

    def __init__(self) -> None:
        super().__init__("the changes in flight are stored first")


class OutcomesMissing(MailboxError):
    """A store delivered fewer or more outcomes than the batch has changes; the batch is persisted again."""

    def __init__(self, expected: int, delivered: int) -> None:
        super().__init__(f"{expected} changes were persisted, but {delivered} outcomes delivered; deliver one for each change")
        self.expected = expected
        self.delivered = delivered
