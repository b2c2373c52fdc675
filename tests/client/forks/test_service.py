"""A preforked service under load, for real: see `service`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.client.forks.service import run

pytestmark = pytest.mark.long


@pytest.mark.parametrize("shards", [None, 2])
def test_every_answer_is_right_while_workers_and_store_are_killed(shards: int | None, tmp_path: Path) -> None:
    load = run(tmp_path, 15, seed=1, shards=shards)
    assert load.wrong == []
    assert min(load.counts["web: right"], load.counts["pool: right"], load.counts["killed: web worker"]) > 0
    assert len(load.pids) > 6  # all workers at the beginning, and some that were forked later
