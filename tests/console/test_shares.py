"""One identity cannot take the places of the others: its own oldest session, or live page, gives way."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Thread

import pytest

from eventstore.console import history, streaming, visitors
from eventstore.console.shares import gives_way
from eventstore.errors import Overloaded
from tests.console.conftest import Serve
from tests.console.http import Visitor, read_until
from tests.security.access_file import give
from tests.server_thread import ServerThread
from tests.waiting import wait_until

EACH_MAX = 3


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """An identity may have few sessions and live pages, and figures come often."""
    monkeypatch.setattr(visitors, "VISITORS_EACH_MAX", EACH_MAX)
    monkeypatch.setattr(streaming, "STREAMS_EACH_MAX", EACH_MAX)
    monkeypatch.setattr(history, "INTERVAL_S", 0.1)


@pytest.fixture
def tokens(tmp_path: Path) -> dict[str, str]:
    return {name: give(tmp_path / "data", name, "stats") for name in ("ann", "bob")}


@pytest.fixture
def guarded(few: None, tokens: dict[str, str], serve: Serve) -> ServerThread:
    return serve()


def signed_in(server: ServerThread, token: str) -> Visitor:
    visitor = Visitor(server.http)
    assert visitor.sign_in(token).status == 303
    return visitor


def are_in(visitors: list[Visitor]) -> list[bool]:
    return [each.get("/console").status == 200 for each in visitors]


def test_the_oldest_session_of_an_identity_gives_way_to_its_newest(guarded: ServerThread, tokens: dict[str, str]) -> None:
    ann = signed_in(guarded, tokens["ann"])
    bobs = [signed_in(guarded, tokens["bob"]) for _ in range(EACH_MAX + 2)]
    assert are_in(bobs) == [False, False, True, True, True]
    assert are_in([ann]) == [True]


def test_one_that_signs_in_again_takes_its_own_place_only(guarded: ServerThread, tokens: dict[str, str]) -> None:
    bobs = [signed_in(guarded, tokens["bob"]) for _ in range(EACH_MAX)]
    assert bobs[-1].sign_in(tokens["bob"]).status == 303
    assert are_in(bobs) == [True, True, True]


def test_those_who_sign_in_at_the_same_moment_are_within_the_limit_too(guarded: ServerThread, tokens: dict[str, str]) -> None:
    with ThreadPoolExecutor(12) as pool:
        bobs = list(pool.map(lambda _: signed_in(guarded, tokens["bob"]), range(12)))
    assert sum(are_in(bobs)) == EACH_MAX


def test_the_oldest_live_page_of_an_identity_gives_way_and_says_so(guarded: ServerThread, tokens: dict[str, str]) -> None:
    ann, bob = signed_in(guarded, tokens["ann"]), signed_in(guarded, tokens["bob"])
    with ExitStack() as stack:
        live = stack.enter_context(ann.updates("/console/live"))
        read_until(live, "event: figures")
        opened = []
        for _ in range(EACH_MAX):  # one after the other: the server may take those of one moment in any order
            opened.append(stack.enter_context(bob.updates("/console/live")))
            read_until(opened[-1], "event: figures")
        newest = stack.enter_context(bob.updates("/console/live"))
        read_until(newest, "event: figures")
        assert "reload this one if you need it" in read_until(opened[0], "event: ended\n" + "data: too many pages are open")
        for each in (live, newest, *opened[1:]):
            read_until(each, "event: figures")


def test_pages_that_are_opened_at_the_same_moment_are_within_the_limit_too(
    guarded: ServerThread, tokens: dict[str, str]
) -> None:
    ended: list[int] = []
    bob = signed_in(guarded, tokens["bob"])

    def follow(number: int) -> None:
        with bob.updates("/console/live") as opened, suppress(AssertionError):  # it ends with the server
            read_until(opened, "event: ended")
            ended.append(number)

    followers = [Thread(target=follow, args=(number,), daemon=True) for number in range(12)]
    for each in followers:
        each.start()
    wait_until(lambda: len(ended) >= 12 - EACH_MAX, "the oldest have given way")
    with bob.updates("/console/live") as one_more:
        read_until(one_more, "event: figures")
        wait_until(lambda: len(ended) == 12 - EACH_MAX + 1, "one more gives way to one more")
    guarded.begin_to_stop()
    for each in followers:
        each.join()
    assert len(ended) == 12 - EACH_MAX + 1


def test_an_open_page_ends_with_its_session(guarded: ServerThread, tokens: dict[str, str]) -> None:
    bob = signed_in(guarded, tokens["bob"])
    with bob.updates("/console/live") as live:
        read_until(live, "event: figures")
        bob.get("/console")
        assert bob.post("/console/sign-out", {}).status == 303
        assert "you are signed out" in read_until(live, "event: ended\ndata: you are")


def test_where_all_places_are_taken_the_identity_with_the_most_gives_way() -> None:
    held = {1: "ann", 2: "bob", 3: "bob", 4: "cid"}
    assert gives_way(held, "dan", each_max=9, all_max=5, what="x") is None
    assert gives_way(held, "dan", each_max=9, all_max=4, what="x") == 2
    assert gives_way(held, "bob", each_max=9, all_max=4, what="x") == 2
    assert gives_way(held, "ann", each_max=1, all_max=9, what="x") == 1
    assert gives_way({1: None, 2: None}, None, each_max=1, all_max=2, what="x") == 1
    with pytest.raises(Overloaded, match="3 x, the limit"):
        gives_way({1: "ann", 2: "bob", 3: "cid"}, "dan", each_max=9, all_max=3, what="x")
    assert gives_way({1: "ann", 2: "bob", 3: "cid"}, "bob", each_max=9, all_max=3, what="x") == 2
