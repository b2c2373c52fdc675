"""The page of an aggregate names the others of a commit of several."""

from __future__ import annotations

import re
from pathlib import Path

import eventstore as es
from tests.console.conftest import Serve
from tests.console.http import Visitor
from tests.security.access_file import give

ONE = [es.NewEvent("Moved", {})]


def cards(visitor: Visitor, aggregate_id: str, more: str = "") -> list[tuple[str, list[str]]]:
    """The version of each event of a page, and the links to other aggregates of its commit."""
    page = visitor.get(f"/console/aggregates/one?id={aggregate_id}{more}").text
    found = []
    for card in re.findall(r"<article.*?</article>", page, flags=re.S):
        version = re.findall(r"version (\d+)", card)[0]
        (commit,) = re.findall(r"one commit with (.*?)</p>", card, flags=re.S) or [""]
        found.append((version, [href.replace("&amp;", "&") for href in re.findall(r'href="([^"]*)"', commit)]))
    return found


def test_the_page_of_each_links_the_others_at_their_versions(serve: Serve) -> None:
    server = serve()
    with es.blocking.connect(server.address) as store:
        store.append("a", ONE, 0)
        store.commit([es.Write("a", ONE * 2, 1), es.Write("b<", ONE, 0), es.Write("c", ONE, 0)])
        store.append("c", ONE, 1)
        store.commit([es.Write("c", ONE, 2), es.Write("a", ONE, 3)])
    visitor, one = Visitor(server.http), "/console/aggregates/one?id="
    both = [f"{one}b%3C&from=1", f"{one}c&from=1"]
    assert cards(visitor, "a") == [("1", []), ("2", both), ("3", both), ("4", [f"{one}c&from=3"])]
    assert cards(visitor, "a", "&from=3") == [("3", both), ("4", [f"{one}c&from=3"])]
    assert cards(visitor, "b%3C") == [("1", [f"{one}a&from=2", f"{one}c&from=1"])]
    assert cards(visitor, "c") == [("1", [f"{one}a&from=2", f"{one}b%3C&from=1"]), ("2", []), ("3", [f"{one}a&from=4"])]


def test_of_many_the_first_are_linked_and_the_others_counted(serve: Serve) -> None:
    server = serve()
    with es.blocking.connect(server.address) as store:
        store.commit([es.Write(f"a-{number}", ONE, 0) for number in range(300)])
    visitor = Visitor(server.http)
    ((_, links),) = cards(visitor, "a-299")
    assert len(links) == 20
    assert "and 279 more aggregates" in visitor.get("/console/aggregates/one?id=a-299").words


def test_who_may_not_read_the_log_is_told_how_many_they_are(serve: Serve, tmp_path: Path) -> None:
    admin, limited = give(tmp_path / "data", "root", "admin"), give(tmp_path / "data", "ann", "read:a-", "stats")
    server = serve()
    with es.blocking.connect(server.address, token=admin) as store:
        store.commit([es.Write("a-1", ONE, 0), es.Write("b-1", ONE, 0), es.Write("b-2", ONE, 0)])
    visitor = Visitor(server.http)
    visitor.sign_in(limited)
    found = visitor.get("/console/aggregates/one?id=a-1")
    assert "one commit with 2 other aggregates" in found.words
    assert "b-1" not in found.text
