"""The console's page of alarms: what is wrong, who silenced it, and a test."""

from __future__ import annotations

from pathlib import Path

from eventstore import blocking
from tests.console.conftest import Serve
from tests.console.http import Visitor
from tests.security.access_file import give
from tests.waiting import wait_until

RULES = {"alarm_rules": "many_topics: broker_topics > 0", "alarm_interval_s": 0.05}


def test_alarms_are_shown_silenced_and_tested(serve: Serve) -> None:
    server = serve(**RULES)
    visitor = Visitor(server.http)
    assert "many_topics – quiet" in visitor.get("/console/alarms").words
    with blocking.connect(server.address) as store:
        store.broker.create_topic("orders")
        wait_until(lambda: store.stats()["alarms"] == "many_topics", "it is raised")
        page = visitor.get("/console/alarms")
        assert "many_topics – raised" in page.words
        assert page.words.index("many_topics") < page.words.index("audit_stuck"), "what is raised comes first"
        assert "for 8 hours" in visitor.get("/console/do/silence?alarm=many_topics&hours=8").words
        given = {"alarm": "many_topics", "hours": "8", "why": "known <b>"}
        assert visitor.post("/console/do/silence", given).status == 303
        (silenced,) = [each for each in store.alarms.list() if each.silenced_by is not None]
        assert (silenced.name, silenced.silenced_because) == ("many_topics", "known <b>")
        page = visitor.get("/console/alarms")
        assert "console (not signed in): known <b>" in page.words
        assert "<b>" not in page.text
        assert "are sent again" in visitor.get("/console/do/silence?alarm=many_topics&hours=0").words
        assert visitor.post("/console/do/silence", {**given, "hours": "0"}).status == 303
        assert not [each for each in store.alarms.list() if each.silenced_by is not None]
    visitor.get("/console/do/test-alarms")
    sent = visitor.post("/console/do/test-alarms", {})
    assert sent.status == 303
    assert "no way is set up" in visitor.get(sent.headers["location"]).words


def test_alarms_are_silenced_and_tested_with_the_permission_alone(serve: Serve, tmp_path: Path) -> None:
    reader = give(tmp_path / "data", "ann", "reader")
    server = serve(**RULES)
    ann = Visitor(server.http)
    ann.sign_in(reader)
    page = ann.get("/console/alarms")
    assert "many_topics" in page.words
    assert "Silence" not in page.words
    assert "Send a test" not in page.words
    for action, given in (("silence", {"alarm": "many_topics", "hours": "8", "why": "x"}), ("test-alarms", {})):
        ann.get("/console/log")
        assert ann.post(f"/console/do/{action}", given).status == 403
