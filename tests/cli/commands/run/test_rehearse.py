"""`eventstore rehearse`: all aggregates are restored with the code of now, and all that does not fit is reported."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.cli.processes import Server, line, output, run

pytestmark = pytest.mark.usefixtures("examples")
Serve = Callable[..., Server]


def test_each_event_that_does_not_fit_is_reported_and_not_only_the_first(serve: Serve) -> None:
    server = serve()
    lines = [line(f"acc-{number}", f"open-{number}", "Opened", {"owner": "Ada"}) for number in range(3)]
    output("import", "-", store=server.store, text="\n".join(lines))
    said = output("rehearse", "--domain", "bank:app", store=server.store)
    assert said == "all fit: 3 aggregates restored, 3 events\n"
    lines = [
        line("acc-0", "bad-0", "Deposited", {"cents": "many"}),
        line("acc-0", "good-0", "Deposited", {"cents": 1}),
        line("acc-0", "bad-1", "Deposited", {"dollars": 1}),
        line("acc-1", "bad-2", "Renamed", {"owner": "Bob"}),
        line("other-1", "o-1", "Painted", {"colour": "red"}),
    ]
    output("import", "-", store=server.store, text="\n".join(lines))
    done = run("rehearse", "--domain", "bank:app", store=server.store)
    told = done.stdout
    assert done.returncode == 1
    assert "3 events do not fit; 3 aggregates restored, 7 events; 1 aggregate of other domains" in done.stderr
    assert "acc-0  v2  Deposited:" in told
    assert "acc-0  v4  Deposited:" in told
    assert "acc-1  v2  Renamed: " in told
    assert "no method for events of type 'Renamed'" in told
    assert output("rehearse", "acc-2", "--domain", "bank:app", store=server.store).startswith("all fit: 1 aggregate restored")
    found = json.loads(output("rehearse", "acc-2", "--domain", "bank:app", "--json", store=server.store))
    assert found == {"aggregates": 1, "events": 1, "others": 0, "faults": 0}
