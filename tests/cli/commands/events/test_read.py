from __future__ import annotations

import json

from tests.cli.processes import Server, output, refused

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


def test_a_command_that_was_not_carried_out_is_an_error(shared: Server) -> None:
    output("import", "-", store=shared.store, text=LINES)
    assert "has no event of command 'c-9'" in refused("read", "r", "--command", "c-9", store=shared.store)
    assert "whole commit" in refused("read", "r", "--command", "c-2", "--limit", 1, store=shared.store, code=2)
