"""Erases a subject, and looks for what is left of one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eventstore.cli.terminal.output import moment, print_json, print_line
from eventstore.cli.terminal.shared_options import DEFAULT_STORE, AsJson, StoreAddress
from eventstore.errors import InvalidArgument
from eventstore.fields import counted

if TYPE_CHECKING:
    from eventstore.protocol.subject_requests import ErasedSubject
    from eventstore.subjects.traces import Traces

_SHOWN: int = 50
_NOT_PROMISED = (
    "what is not promised: blocks that the disk has freed and not overwritten, snapshots of disks, swap; what readers kept, in "
    "tables, files, messages or memory; events that were stored without a subject; and ids, types, metadata, tags and the "
    "subject's name, which stay"
)


def erase(
    subject: Annotated[str, typer.Argument(metavar="SUBJECT", help="The subject, such as customer:c-17.")],
    because: Annotated[str | None, typer.Option(metavar="TEXT", help="Why: it is stored with the record.")] = None,
    verify: Annotated[
        list[Path] | None,
        typer.Option("--verify", metavar="FOLDER", help="Erase nothing, but look for what is left of it here; repeatable."),
    ] = None,
    search: Annotated[
        list[str] | None, typer.Option("--search", metavar="TEXT", help="With --verify: look for this text, too; repeatable.")
    ] = None,
    as_json: AsJson = False,
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """Erase the data about a person, for good.

    It destroys the key of all events with this subject.

    The store keeps a record of it, with the reason and without the data. From then on the events are read as erased. A second
    time the command shows the first record again, and destroys a key that has come back. It needs the permission erase on the
    subject.

    With --verify the command looks into folders: of stores that are not being served, of backups, of anything that readers have
    written. It finds the key, and the texts of --search in every file, whatever kind it is. The exit code is 1 if it has found
    any of them, or could not look into a file.

    \\b
    Examples:
      eventstore erase customer:c-17 --because 'asked by letter of 3 May'
      eventstore erase customer:c-17 --verify ./data --verify ./backups --search 'Ada Lovelace'
    """
    from eventstore.tags import check_subject

    check_subject(subject)
    if verify:
        if because is not None:
            raise InvalidArgument("--because is of an erasure, --verify erases nothing; give one of them", field="because")
        _verify(subject, verify, search or [], as_json)
        return
    if search:
        raise InvalidArgument("--search needs --verify FOLDER, where to look", field="search")
    if because is None:
        raise InvalidArgument(
            "--because is missing: say why the subject is erased; it is stored with the record", field="because"
        )
    from eventstore import blocking

    with blocking.connect(store, name="eventstore erase", timeout=None) as connected:
        done = connected.erase(subject, because)
    if as_json:
        print_json({"subject": subject, **done._asdict()})
    else:
        _print_receipt(subject, done)


def _print_receipt(subject: str, done: ErasedSubject) -> None:
    key = "its key is destroyed" if done.had_key else "it has no key"
    print_line(f"{subject} was erased at {moment(done.erased_us)}: record {done.sequence}; {key}")
    print_line(f"provisional until {moment(done.leased_until_us)}: a reader may have the key so long")
    if done.replicas > 1:
        print_line(f"destroyed on {done.replicas} replicas; one that is away destroys it before it serves")
    print_line(_NOT_PROMISED)


def _verify(subject: str, folders: list[Path], texts: list[str], as_json: bool) -> None:
    from eventstore.subjects.traces import find_traces

    found = find_traces(subject, folders, texts)
    if as_json:
        print_json(
            {
                "subject": subject,
                "clean": found.clean,
                "files": found.files,
                "bytes": found.bytes,
                "named": found.named,
                "findings": [each._asdict() for each in found.findings],
                "unread": found.unread,
            }
        )
    else:
        _print_traces(subject, found)
    if not found.clean:
        raise typer.Exit(1)


def _print_traces(subject: str, found: Traces) -> None:
    print_line(
        f"looked into {counted(found.files, 'file')}, {counted(found.bytes, 'byte')}; "
        f"the name {subject} stands in them {counted(found.named, 'time')}, and stays"
    )
    for each in found.findings[:_SHOWN]:
        print_line(f"  {each.file}, byte {each.offset}: {each.what}")
    if len(found.findings) > _SHOWN:
        print_line(f"  … and {len(found.findings) - _SHOWN} more (--json shows them)")
    for path in found.unread:
        print_line(f"  not looked into: {path}")
    print_line("nothing of it was found" if found.clean else counted(len(found.findings), "finding"))
