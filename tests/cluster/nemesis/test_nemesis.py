"""A short round of breaking a cluster of real processes, with the seed of the day."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.cluster.etcd.etcd_program import MISSING, etcd_program
from tests.cluster.nemesis.faults import ALL
from tests.cluster.nemesis.round import play

_BROKEN_S = 15.0


@pytest.mark.long
async def test_what_clients_of_a_broken_cluster_were_told_is_stored_on_every_replica(tmp_path: Path) -> None:
    if etcd_program() is None:
        pytest.skip(MISSING)
    seed = datetime.now(UTC).toordinal()
    report = await play(tmp_path, _BROKEN_S, seed, ALL)
    timeline = report.timeline
    for kind, why in report.skipped.items():
        print(f"not possible here: {kind}: {why}")
    said = "\n".join(f"{note.at:8.2f}  {note.kind:16} {note.what}" for note in timeline.notes)
    again = f"python -m tests.cluster.nemesis --seconds {_BROKEN_S:g} --seed {seed}"
    assert timeline.anomalies == [], f"{again}\n{said}\n" + "\n".join(report.lines())
    assert report.counts
    assert report.records.acknowledged
    assert any(each.is_newest and any(each.counts) for each in report.records.statements)
    assert {each.tag != "" for each in report.records.joint.values() if each.outcome} == {True, False}
    assert all(report.records.readers.values())
    assert report.records.delivered
    assert report.records.progress
