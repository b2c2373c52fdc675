"""Checks a data folder, and lists its faults."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from eventstore.cli.terminal.data_folder import opening
from eventstore.cli.terminal.output import meter, print_json, print_line
from eventstore.cli.terminal.shared_options import AsJson, DataFolder, ShowProgress
from eventstore.fields import counted

if TYPE_CHECKING:
    from pathlib import Path

    from eventstore.store.verification import VerificationProgress, VerifyReport

_FINDINGS_SHOWN = 50


def verify(
    data: DataFolder,
    progress: ShowProgress = None,
    as_json: AsJson = False,
) -> None:
    """Check a data folder that is not being served.

    The command checks all checksums, that versions and sequences have no gaps, that command ids are used once, that
    indexes and directory agree with the event files, and that access.json can be read. In the folder of a node it checks
    each shard. It changes nothing. The exit code is 0 without faults, 1 with faults, 2 if the folder cannot be opened.

    \b
    Example:
      eventstore verify ./data
    """
    sound, shards = True, dict[str, dict[str, object]]()
    with opening(data):
        folders = _shards(data)
        for folder in folders or [data]:
            verified = _verified(folder, "verify" if folders is None else folder.name, progress)
            sound = sound and verified.sound
            if as_json:
                shards[folder.name] = _members(verified)
            else:
                _print(verified, "" if folders is None else f"{folder.name}: ")
        access = _access_fault(data)
        if access is not None and not as_json:
            print_line(f"1 fault in the list of identities: {access}")
        sound = sound and access is None
    if as_json:
        found = {"shards": shards} if folders is not None else shards[data.name]
        print_json({**found, "sound": sound, "access_fault": access})
    if not sound:
        raise typer.Exit(1)


def _shards(data: Path) -> list[Path] | None:
    """Returns the folders of the shards in the folder of a node; None: it is that of a store.

    Raises:
        FolderRefused: one is missing, or another's.
    """
    from eventstore.store.data_folder import CLUSTER, NODE, STORE, shard_folders

    is_replicated = (data / NODE).exists()
    if (data / STORE).exists() or not ((data / CLUSTER).is_dir() or is_replicated):
        return None
    if is_replicated:
        return shard_folders(data)
    from eventstore_cluster.shard_folders import plan

    return [each.folder for each in plan(data, None).shards]


def _access_fault(data: Path) -> str | None:
    """Returns what is wrong with the list of who may do what; None: nothing, or the folder has none."""
    from eventstore.errors import EventStoreError
    from eventstore.security.access_list import ACCESS, read_access

    try:
        read_access(data / ACCESS)
    except FileNotFoundError:
        return None
    except EventStoreError as error:
        return error.message
    return None


def _verified(folder: Path, name: str, progress: bool | None) -> VerifyReport:
    from eventstore.store.verification import verify

    with meter(name, progress) as bar:

        def on_progress(step: VerificationProgress) -> None:
            bar.update(step.done_bytes, step.total_bytes, step.step)

        return verify(folder, on_progress)


def _print(verified: VerifyReport, whose: str) -> None:
    print(
        f"{whose}{counted(verified.events, 'event')} in {counted(verified.commits, 'commit')} of "
        f"{counted(verified.aggregates, 'aggregate')}, {counted(verified.event_files, 'event file')} "
        f"({verified.sorted_files:,} sorted)"
    )
    for note in verified.notes:
        print_line(f"  note: {note}")
    for finding in verified.findings[:_FINDINGS_SHOWN]:
        print_line(f"  {finding}")
    if verified.findings_total > _FINDINGS_SHOWN:
        print(f"  … and {verified.findings_total - _FINDINGS_SHOWN} more (--json shows up to {len(verified.findings)})")
    print(counted(verified.findings_total, "fault") if verified.findings_total else "no faults")


def _members(verified: VerifyReport) -> dict[str, object]:
    findings = [{"file": item.file, "offset": item.offset, "what": item.what} for item in verified.findings]
    names = ("event_files", "sorted_files", "commits", "events", "aggregates")
    counts = {name: getattr(verified, name) for name in names}
    return {
        "sound": verified.sound,
        **counts,
        "faults": verified.findings_total,
        "findings": findings,
        "notes": verified.notes,
    }
