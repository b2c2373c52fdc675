"""A client starts quickly: it imports neither numpy nor lmdb, which only files and indexes need."""

from __future__ import annotations

import subprocess
import sys

import pytest

RECORDS = [
    "eventstore.records.commit", "eventstore.records.raw_commit", "eventstore.records.event_page",
    "eventstore.records.event_filter", "eventstore.records.cursors", "eventstore.records.message",
    "eventstore.records.state_record", "eventstore.records.slots", "eventstore.records.cluster_map",
    "eventstore.records.tag_filter", "eventstore.records.topic_names",
]  # fmt: skip
CLIENTS = ["eventstore.blocking", "eventstore.client.aio.store", "eventstore.client.aio.broker"]


@pytest.mark.parametrize("modules", [RECORDS, CLIENTS], ids=["records", "clients"])
def test_neither_numpy_nor_lmdb_is_imported(modules: list[str]) -> None:
    program = f"import {', '.join(modules)}, sys; print({{'numpy', 'lmdb'}} & sys.modules.keys())"
    ended = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert ended.stdout == "set()\n"
