"""Erases a subject, and looks for what is left of one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eventstore.cli.terminal.output import moment, print_json, print_line
from eventstore.cli.terminal.shared_options import DEFAULT_STORE, AsJson, StoreAddress
from eventstore.errors import InvalidArgument
from eventstore.fields import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eventstore.protocol.subject_requests import ErasedSubject
    from eventstore.subjects.traces import Traces

_SHOWN: int = 50
_NOT_PROMISED = (
    "what is not promised: blocks that the disk has freed and not overwritten, snapshots of disks, swap; what readers kept, in "
    "tables, files, messages or memory; events that were stored without a subject; and ids, types, metadata, tags and the "
    "subject's name, which stay"
)


def erase(
    subject: Annotated[
        str | None, typer.Argument(metavar="SUBJECT", help="The subject, such as customer:c-17.", show_default=False)
    ] = None,
    because: Annotated[str | None, typer.Option(metavar="TEXT", help="Why: it is stored with the record.")] = None,
    verify: Annotated[
        list[Path] | None,
        typer.Option("--verify", metavar="FOLDER", help="Erase nothing, but look for what is left of it here; repeatable."),
    ] = None,
    search: Annotated[
        list[str] | None, typer.Option("--search", metavar="TEXT", help="With --verify: look for this text, too; repeatable.")
    ] = None,
    list_all: Annotated[bool, typer.Option("--list", help="Print all erasures, a line of JSON each.")] = False,
    again: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Erase everyone in the lines of --list, where a backup had them back.")
    ] = None,
    as_json: AsJson = False,
    store: StoreAddress = DEFAULT_STORE,
) -> None:
    """Erase the data about a person, for good.

    It destroys the key of all events with this subject.

    The store keeps a record of it, with the reason and without the data. From then on the events are read as erased. A second
    time the command shows the first record again, and destroys a key that has come back. It needs the permission erase on the
    subject.

    Keep what --list prints where no backup of the store is: a store that is restored from a backup of before an erasure has no
    record of it. Give it to --again then.

    With --verify the command looks into folders: of stores that are not being served, of backups, of anything that readers have
    written. It finds the key, and the texts of --search in every file, whatever kind it is. The exit code is 1 if it has found
    any of them, or could not look into a file.

    \\b
    Examples:
      eventstore erase customer:c-17 --because 'asked by letter of 3 May'
      eventstore erase customer:c-17 --verify ./data --verify ./backups --search 'Ada Lovelace'
    """
    from eventstore.tags import check_subject

    if list_all or again is not None:
        if subject is not None or because is not None or verify or search or (list_all and again is not None):
            raise InvalidArgument(
                "--list and --again are about all subjects; give one of them, and no other option", field="subject"
            )
        _list_all(store) if again is None else _erase_again(again, store)
        return
    if subject is None:
        raise InvalidArgument("SUBJECT is missing; give one, --list or --again FILE", field="subject")
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


def _list_all(store: str) -> None:
    from eventstore import blocking
    from eventstore.subjects.key_buckets import ERASURES, erased_by

    with blocking.connect(store, name="eventstore erase", timeout=None) as connected:
        after = None
        while page := connected.aggregates(ERASURES, after):
            for each in page:
                for record in connected.read(each.aggregate_id, limit=1):
                    said = record.json()
                    because = said.get("because") if isinstance(said, dict) else None
                    print_json({"subject": erased_by(each.aggregate_id), "because": because, "erased_us": record.timestamp})
            after = page[-1].aggregate_id


def _erase_again(path: Path, store: str) -> None:
    from eventstore import blocking

    wanted = list(_erasures_in(path))  # all of them, before anything is erased
    had_key = 0
    with blocking.connect(store, name="eventstore erase", timeout=None) as connected:
        for subject, because in wanted:
            had_key += connected.erase(subject, because).had_key
    print_line(f"{counted(len(wanted), 'subject is', 'subjects are')} erased; {had_key} had a key again")


def _erasures_in(path: Path) -> Iterator[tuple[str, str]]:
    """Yields subject and reason of each line. Raises InvalidArgument."""
    from eventstore.tags import check_subject

    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{path} cannot be read: {error}", field="again") from None
    for number, line in enumerate(lines, 1):
        try:
            said = json.loads(line)
            yield check_subject(said["subject"]), str(said["because"] or "not known")
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidArgument(f"{path}, line {number}, is not one of --list: {error!r:.80}", field="again") from None


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
