"""Events that a domain declares with tags are found by them, however their command was handled."""

from __future__ import annotations

from pathlib import Path

import pytest

import eventstore as es
from tests.server.commands.courses import Subscribe, Subscribed, app
from tests.server_thread import ServerThread

DOMAIN = "tests.server.commands.courses:app"


def test_events_of_commands_have_the_tags_of_their_class(tmp_path: Path) -> None:
    with ServerThread(tmp_path / "data", domain=DOMAIN) as server, es.blocking.connect(server.address) as store:
        _, start = store.query(es.Query(tags=["course:c1"]))
        store.send(Subscribe("s-{1}", "c1", ["ada"]), "c-1")
        store.send(Subscribe("s-{1}", "c1", ["bob", "cy"]), "c-2", metadata={"user": "eve"})
        store.send(Subscribe("t-{1}", "c2", []), "c-3")
        events, _ = store.query(es.Query(tags=["course:c1"]))
        assert [event.tags for event in events] == [
            ("course:c1", "students:ada"),
            ("course:c1", "students:bob", "students:cy"),
        ]
        assert app.decode_event(events[1]) == Subscribed("c1", ["bob", "cy"])
        assert events[1].metadata_json() == {"user": "eve"}
        assert [event.tags for event in store.read("t-{1}")] == [("course:c2",)]
        with pytest.raises(es.ConditionFailed):
            store.commit([es.Write("d-{1}", [es.NewEvent("D")], 0)], unless=es.Query(tags=["students:cy"]), after=start)
        assert store.send(Subscribe("s-{1}", "c1", ["ada"]), "c-1").duplicate
        with pytest.raises(es.InvalidArgument, match="a tag has"):
            store.send(Subscribe("s-{1}", "c1", ["x" * 250]))
        server.restart()
        assert store.query(es.Query(tags=["course:c1"]))[0] == events
