"""`eventstore timers` with a real server."""

from __future__ import annotations

import json
from pathlib import Path

from eventstore import blocking
from tests.cli.processes import output, refused
from tests.server.commands.orders import Pay, Place, Remind
from tests.server_thread import ServerThread
from tests.waiting import wait_until


def test_an_operator_looks_at_timers_and_moves_runs_and_cancels_them(tmp_path: Path) -> None:
    with ServerThread(tmp_path / "data", domain="tests.server.commands.orders:app") as server:
        at = server.address
        assert output("timers", "list", store=at).startswith("no timer is pending or parked")
        with blocking.connect(at) as store:
            store.send(Place("order-1", "1h"))
            store.send(Place("order-2", "2h"))
            store.send_later(Remind("order-3", "bug"), after="1ms")
            wait_until(lambda: store.stats()["timers_parked"] == 1, "one is parked")
            assert store.stats()["timers_pending"] == 2
        listed = json.loads(output("timers", "list", "--json", store=at))
        assert [(each["aggregate_id"], each["timer"]) for each in listed] == [
            ("order-3", "$timers{order-3}/1"),
            ("order-1", "payment"),
            ("order-2", "payment"),
        ]
        assert "a bug in a handler" in output("timers", "list", store=at)
        moved = output("timers", "move", "order-1", "payment", "--after", "3h", "--because", "asked", store=at)
        assert moved == "payment of order-1 is due in 3h\n"
        later = json.loads(output("timers", "list", "--json", store=at))
        assert [each["aggregate_id"] for each in later] == ["order-3", "order-2", "order-1"]
        output("timers", "run-now", "order-2", "payment", "--because", "now", store=at)
        with blocking.connect(at) as store:
            wait_until(lambda: store.version("order-2") == 3, "it is sent")
            wait_until(lambda: "accepted" in output("timers", "show", "order-2", store=at), "its outcome is shown")
            store.send(Pay("order-1"))
        output("timers", "cancel", "order-3", "$timers{order-3}/1", "--because", "a bug", store=at)
        assert output("timers", "list", store=at).startswith("no timer is pending or parked")
        assert "no timer" in refused("timers", "cancel", "order-1", "payment", "--because", "x", store=at, code=2)
        assert output("timers", "confirm-clock", "--because", "set right", store=at) == "the clock is confirmed\n"
        with blocking.connect(at) as store:
            whys = [each.json().get("why") for each in store.read("$timers{order-1}")]
    assert whys == ["asked"]
