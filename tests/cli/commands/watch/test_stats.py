from __future__ import annotations

import json

from eventstore.cli.commands.watch import stats
from eventstore.cli.terminal.output import moment
from tests.cli.processes import Server, output


def test_figures_are_grouped_by_subject_and_json_is_flat(shared: Server) -> None:
    lines = [each.strip() for each in output("stats", store=shared.store).splitlines()]
    subjects = [each for each in lines if each in ("Store", "Commands", "Connections", "Broker", "Publishing")]
    assert subjects == ["Store", "Commands", "Connections", "Broker", "Publishing"]
    assert "Others" not in lines
    figures = json.loads(output("stats", "--json", store=shared.store))
    shown = {each.split()[0] for each in lines if each}
    assert not set(figures) - shown
    assert not any(isinstance(each, dict) for each in figures.values())
    assert ["process_id", str(figures["process_id"])] in [each.split() for each in lines]  # as kill takes it
    assert ["process_start_time_seconds", moment(figures["process_start_time_seconds"] * 10**6)] in [
        each.split() for each in lines
    ]


def test_a_figure_of_a_newer_server_is_shown_last() -> None:
    grouped = stats._by_subject({"new_figure": 1, "connections": 2, "events": 3})
    assert list(grouped.items()) == [
        ("Store", {"events": 3}),
        ("Connections", {"connections": 2}),
        ("Others", {"new_figure": 1}),
    ]
