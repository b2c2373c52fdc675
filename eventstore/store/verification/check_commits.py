"""Checks the commits of one event file: sequences and versions without gaps, command ids used once.

Vectorised, because a file may hold millions of commits. A damaged file has gaps anyway; there only repetitions are reported.
"""

from __future__ import annotations

from typing import Final

from eventstore.arrays import np
from eventstore.chunks.files import File
from eventstore.chunks.folder import ChunkFolder
from eventstore.chunks.header import ChunkHeader
from eventstore.chunks.slab import Ints
from eventstore.records.commit import JointPlace, decode
from eventstore.store.verification.file_contents import FileContents
from eventstore.store.verification.findings import Findings

_TRAILER_BYTES: Final = 5
_PER_KIND_MAX: Final = 100


def check_commits(folder: ChunkFolder, contents: FileContents, findings: Findings) -> None:
    """Reports commits that are missing, repeated or in the wrong place."""
    header = contents.header
    if header is None:
        return
    before = findings.total
    if contents.columns:
        _check_payloads(contents, findings)
        _check_sequences(contents, header, findings)
        _check_versions(contents, findings)
        _check_commands(folder, contents, findings)
        _check_joint_commits(contents, findings)
        if header.sorted:
            _check_sorted(contents, findings)
    elif header.completed and not contents.damaged:
        findings.add(contents.name, header.end, "is completed but has no records")
    contents.damaged |= findings.total > before


def _check_payloads(contents: FileContents, findings: Findings) -> None:
    """Checks that the events of every commit end where its record does: indexes rely on the canonical encoding."""
    counts = contents.ints("commit_count")
    last = np.cumsum(counts) - 1
    data_end = contents.ints("data")[last] + contents.ints("data_len")[last] + 1
    meta = contents.ints("meta")[last]
    end = np.where(meta > 0, meta + contents.ints("meta_len")[last], data_end)
    starts = contents.ints("commit_offset")
    wrong = np.flatnonzero(end + _TRAILER_BYTES != starts + contents.ints("commit_length"))
    for place in wrong[:_PER_KIND_MAX].tolist():
        findings.add(contents.name, int(starts[place]), "the events of this commit are not in the canonical encoding")


def _check_sequences(contents: FileContents, header: ChunkHeader, findings: Findings) -> None:
    firsts, counts, offsets = contents.ints("commit_sequence"), contents.ints("commit_count"), contents.ints("commit_offset")
    order = np.argsort(firsts, kind="stable")
    if not header.sorted:
        for place in np.flatnonzero(np.diff(firsts) <= 0)[:_PER_KIND_MAX].tolist():
            what = f"sequence {firsts[place + 1]} follows sequence {firsts[place]}"
            findings.add(contents.name, int(offsets[place + 1]), what)
    starts, stops = firsts[order], (firsts + counts)[order]
    wrong = starts[1:] < stops[:-1] if contents.damaged else starts[1:] != stops[:-1]
    for place in np.flatnonzero(wrong)[:_PER_KIND_MAX].tolist():
        what = f"sequence {starts[place + 1]}, expected {stops[place]}"
        findings.add(contents.name, int(offsets[order[place + 1]]), what)
    if contents.damaged:
        return
    if starts[0] != header.first_sequence:
        what = f"the first sequence is {starts[0]}, the header says {header.first_sequence}"
        findings.add(contents.name, int(offsets[order[0]]), what)
    if header.completed and stops[-1] != header.last_sequence + 1:
        what = f"the last sequence is {stops[-1] - 1}, the header says {header.last_sequence}"
        findings.add(contents.name, int(offsets[order[-1]]), what)


def _check_versions(contents: FileContents, findings: Findings) -> None:
    ordinals, firsts, counts = contents.ordinals, contents.ints("commit_version"), contents.ints("commit_count")
    sequences, offsets = contents.ints("commit_sequence"), contents.ints("commit_offset")
    order = np.lexsort((sequences, firsts, ordinals))
    same = ordinals[order][1:] == ordinals[order][:-1]
    starts, stops = firsts[order], (firsts + counts)[order]
    wrong = starts[1:] < stops[:-1] if contents.damaged else starts[1:] != stops[:-1]
    for place in np.flatnonzero(same & wrong)[:_PER_KIND_MAX].tolist():
        name = contents.ids[int(ordinals[order[place + 1]])].decode()
        what = f"aggregate {name!r} goes from version {stops[place] - 1} to version {starts[place + 1]}"
        findings.add(contents.name, int(offsets[order[place + 1]]), what)
    for place in np.flatnonzero(same & (np.diff(sequences[order]) < 0))[:_PER_KIND_MAX].tolist():
        name = contents.ids[int(ordinals[order[place + 1]])].decode()
        what = f"version {starts[place + 1]} of aggregate {name!r} was appended before version {starts[place]}"
        findings.add(contents.name, int(offsets[order[place + 1]]), what)


def _check_commands(folder: ChunkFolder, contents: FileContents, findings: Findings) -> None:
    """Checks that no command id is used twice. Equal hashes only say "maybe", so the two records are read and compared."""
    hashes, ordinals = contents.columns["commit_command"], contents.ordinals
    offsets, lengths = contents.ints("commit_offset"), contents.ints("commit_length")
    order = np.lexsort((offsets, hashes, ordinals))
    twice = (ordinals[order][1:] == ordinals[order][:-1]) & (hashes[order][1:] == hashes[order][:-1])
    places = np.flatnonzero(twice)[:_PER_KIND_MAX].tolist()
    if not places:
        return
    file = folder.files.open(folder.chunk_path(contents.number))
    try:
        for place in places:
            one, other = int(order[place]), int(order[place + 1])
            first = command_of(file, int(offsets[one]), int(lengths[one]))
            if first == command_of(file, int(offsets[other]), int(lengths[other])):
                what = f"command {first[1]!r} of aggregate {first[0]!r} was used before, at byte {offsets[one]}"
                findings.add(contents.name, int(offsets[other]), what)
    finally:
        file.close()


def command_of(file: File, offset: int, length: int) -> tuple[str, str]:
    """Returns aggregate id and command id of the commit at `offset`, which was checked before."""
    view = decode(file.read_at(offset, length))
    return view.aggregate_id, view.command_id


def _check_joint_commits(contents: FileContents, findings: Findings) -> None:
    """Checks that each joint commit has all its records, which agree about it. In a damaged file some may be missing."""
    commits: dict[int, list[tuple[int, JointPlace]]] = {}
    for offset, sequence, place in contents.joint:
        commits.setdefault(sequence - place.events_before, []).append((offset, place))
    for sequence, found in commits.items():
        found.sort(key=lambda each: each[1].place)
        offset, first = found[0]
        same = {(each.records, each.events, each.digest) for _, each in found}
        before = [each.events_before for _, each in found]
        if len(same) > 1 or len(found) > first.records or sorted(set(before)) != before:
            findings.add(contents.name, offset, f"the records of the joint commit at sequence {sequence} contradict each other")
        elif len(found) < first.records and not contents.damaged:
            what = f"the joint commit at sequence {sequence} has {len(found)} of {first.records} records"
            findings.add(contents.name, offset, what)


def _check_sorted(contents: FileContents, findings: Findings) -> None:
    """Checks that commits are in order of (aggregate id, version), as the header claims."""
    ordinals, firsts = contents.ordinals, contents.ints("commit_version")
    wrong = (np.diff(ordinals) < 0) | ((np.diff(ordinals) == 0) & (np.diff(firsts) <= 0))
    offsets: Ints = contents.ints("commit_offset")
    for place in np.flatnonzero(wrong)[:_PER_KIND_MAX].tolist():
        name = contents.ids[int(ordinals[place + 1])].decode()
        what = f"the file is marked as sorted, but version {firsts[place + 1]} of {name!r} is out of order"
        findings.add(contents.name, int(offsets[place + 1]), what)
