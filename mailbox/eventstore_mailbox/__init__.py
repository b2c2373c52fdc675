"""Command mailboxes: commands run on aggregates in memory, far ahead of the disk, in order per aggregate, and conflicts heal
themselves.

Generic over command, aggregate, change and outcome; knows no file, no socket, and no clock but the one it is given.
docs/MAILBOXES.md explains what is guaranteed.

mailboxes        the public class, on trio             machine         the same without an event loop
ports            what it is given                      driver          what it asks of whoever runs it
options          its bounds                            errors          what it refuses
entry            a command on its way                  plain, appends  changes that come ready made
command_mailbox  what was accepted, and consumed       passage         the short way of plain appends
lane             one aggregate's commands              lanes           all aggregates, and which stay in memory
processor        runs commands                         restores        aggregates that are being restored
repeats          commands that came twice              publisher       publishes what is durable
event_mailbox    changes on their way to the store     batch           what the store is given
settlement       outcomes, conflicts, answers          routing         slots
backoff          repetitions                           figures, hottest  what is told of it all
"""

from eventstore_mailbox.batch import Batch
from eventstore_mailbox.entry import (
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
from eventstore_mailbox.errors import MailboxError, Overloaded, Stopped, Stopping, Unrestorable
from eventstore_mailbox.figures import Figures, MailboxFigures
from eventstore_mailbox.mailboxes import Mailboxes
from eventstore_mailbox.options import Options
from eventstore_mailbox.ports import Ports, Publication
from eventstore_mailbox.routing import SLOTS, slot_of

__all__ = [
    "COMMITTED",
    "CONFLICT",
    "DUPLICATE",
    "FAILED",
    "OVERLOADED",
    "REFUSED",
    "SLOTS",
    "STOPPED",
    "UNCHANGED",
    "Batch",
    "Entry",
    "Figures",
    "MailboxError",
    "MailboxFigures",
    "Mailboxes",
    "Options",
    "Overloaded",
    "Ports",
    "Publication",
    "Stopped",
    "Stopping",
    "Unrestorable",
    "slot_of",
]
