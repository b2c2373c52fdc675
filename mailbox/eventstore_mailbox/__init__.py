"""Command mailboxes: run commands on aggregates in memory, ahead of the disk, in order per aggregate; a command that conflicts
is run again on the stored state.

Generic over command, aggregate, change and outcome. The core does no I/O; a driver runs it on trio. docs/MAILBOXES.md lists
the guarantees.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventstore_mailbox.core.options import Options
from eventstore_mailbox.core.ports import Batch, Ports
from eventstore_mailbox.core.state import (
    COMMITTED,
    CONFLICT,
    DUPLICATE,
    FAILED,
    OVERLOADED,
    REFUSED,
    STOPPED,
    UNCHANGED,
    Entry,
)
from eventstore_mailbox.errors import ChangesFirst, MailboxError, MailboxFull, OfParent, Stopped, Stopping, Unrestorable
from eventstore_mailbox.stats import MailboxesStats, MailboxStats

if TYPE_CHECKING:
    from eventstore_mailbox.mailboxes import Mailboxes

__all__ = [
    "COMMITTED",
    "CONFLICT",
    "DUPLICATE",
    "FAILED",
    "OVERLOADED",
    "REFUSED",
    "STOPPED",
    "UNCHANGED",
    "Batch",
    "ChangesFirst",
    "Entry",
    "MailboxError",
    "MailboxFull",
    "MailboxStats",
    "Mailboxes",
    "MailboxesStats",
    "OfParent",
    "Options",
    "Ports",
    "Stopped",
    "Stopping",
    "Unrestorable",
]


def _import_lazily(name: str) -> object:
    """Imports `Mailboxes` on first use: it imports trio, and a program that only reads the options does not need that."""
    if name != "Mailboxes":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from eventstore_mailbox.mailboxes import Mailboxes

    return Mailboxes


if not TYPE_CHECKING:  # a type checker would believe in every name that is asked for
    __getattr__ = _import_lazily
