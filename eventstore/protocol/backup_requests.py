"""The requests about backups, each declared once with its code, values and checks."""

from __future__ import annotations

from typing import Annotated

from eventstore.protocol.across import nothing, rows_of_each
from eventstore.protocol.limits import INT64_MAX
from eventstore.protocol.request_declaration import Answered, Name, integer, optional, request
from eventstore.protocol.server_info import BackupCut
from eventstore.security.permissions import Permission, on


@request(82, needs=on(Permission.BACKUP), across=rows_of_each())
class BeginBackup(Answered[list[BackupCut]]):
    """Asks up to where the store is readable now, and where its files are: for a program that copies them."""


@request(83, needs=on(Permission.BACKUP), across=nothing())
class NoteBackup(Answered[None]):
    """Says that a backup up to a cut that was taken at this time (µs since 1970) is whole; None: none is made into this place
    any more. `place`: where it is, without what is secret.
    """

    place: Name
    taken_us: Annotated[int | None, optional(integer(0, INT64_MAX))]
