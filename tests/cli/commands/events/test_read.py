from __future__ import annotations

import json

from tests.cli.processes import Server, line, output, refused

LINES = """
{"aggregate_id":"r","command_id":"c-1","event_type":"A","timestamp":"2026-01-31T12:00:00Z","data":1}
{"aggregate_id":"r","command_id":"c-2","event_type":"A","timestamp":"2026-01-31T12:00:00Z","data":2}
{"aggregate_id":"r","command_id":"c-2","event_type":"B","timestamp":"2026-01-31T12:00:00Z","data":3}
{"aggregate_id":"r","command_id":"c-3","event_type":"A","timestamp":"2026-01-31T12:00:00Z","data":4}
""".strip()


def test_the_events_of_one_command_are_shown(shared: Server) -> None:
    output("import", "-", store=shared.store, text=LINES)
    shown = output("read", "r", "--command", "c-2", "--json", store=shared.store).splitlines()
    assert [(json.loads(each)["version"], json.loads(each)["event_type"]) for each in shown] == [(2, "A"), (3, "B")]


def test_events_of_an_aggregate_are_chosen_by_their_time(shared: Server) -> None:
    hours = "\n".join(line("hours", f"c-{hour}", "T", hour, timestamp=f"2026-01-31T{hour}:00:00Z") for hour in range(10, 20))
    output("import", "-", store=shared.store, text=hours)

    def shown(*options: object) -> list[str]:
        return output("read", "hours", "--raw", *options, store=shared.store).splitlines()

    noon = ("--from-time", "2026-01-31T12:00:00Z", "--to-time", "2026-01-31T16:00:00+01:00")
    assert shown(*noon) == ["12", "13", "14", "15"]
    assert shown(*noon, "--backwards", "--limit", 3) == ["15", "14", "13"]
    assert shown(*noon, "--from-version", 5) == ["14", "15"]
    assert shown("--to-time", "2026-01-31T09:00:00Z") == []
    assert "times" in refused("read", "hours", "--command", "c-12", *noon, store=shared.store, code=2)


def test_a_command_that_was_not_carried_out_is_an_error(shared: Server) -> None:
    output("import", "-", store=shared.store, text=LINES)
    assert "has no event of command 'c-9'" in refused("read", "r", "--command", "c-9", store=shared.store)
    assert "whole commit" in refused("read", "r", "--command", "c-2", "--limit", 1, store=shared.store, code=2)
