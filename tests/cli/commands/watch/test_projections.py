"""`eventstore projections`: what connected projectors say of themselves."""

from __future__ import annotations

import json
import time
from pathlib import Path

import eventstore as es
from eventstore import blocking
from tests.cli.processes import output
from tests.server_thread import ServerThread
from tests.waiting import wait_until

HOUR_US = 3_600_000_000


def test_the_projections_of_connected_projectors_are_listed_with_how_far_they_are(tmp_path: Path) -> None:
    with ServerThread(tmp_path / "data") as server:
        assert output("projections", "--json", store=server.address) == "[]\n"
        assert "no projector or worker has connected" in output("projections", store=server.address)
        with blocking.connect(server.address) as store:
            for version in range(3):
                store.append("a", [es.NewEvent("Opened", {})], expected_version=version)
            store.note_projection("totals", 3, None, 0)
            store.note_projection("balances", 1, time.time_ns() // 1_000 - HOUR_US, 2)
            behind, caught_up = json.loads(output("projections", "--json", store=server.address))
            rows = output("projections", store=server.address).splitlines()
        age = behind.pop("lag_microseconds")
        assert HOUR_US <= age < 2 * HOUR_US
        address = behind.pop("address")
        assert 0 <= behind.pop("silent_microseconds") < HOUR_US
        assert 0 <= caught_up.pop("silent_microseconds") < HOUR_US
        assert behind == {"name": "balances", "position": 1, "lag_events": 2, "parked": 2, "has_left": False}
        assert caught_up == {
            "name": "totals", "address": address, "position": 3, "lag_events": 0, "lag_microseconds": 0, "parked": 0,
            "has_left": False,
        }  # fmt: skip
        assert rows[1].split() == ["projection", "address", "position", "lag", "age", "parked", "last", "seen"]
        assert [row.split()[0] for row in rows[-2:]] == ["balances", "totals"]
        assert address in rows[-1]
        wait_until(lambda: output("projections", store=server.address).count(" s ago, has left") == 2, "both have left")
        assert "balances" not in output("projections", "--forget", "balances", store=server.address)
