from __future__ import annotations

import json
from collections.abc import Callable

import pytest

import eventstore as es
from eventstore import blocking
from tests.cli.processes import Server, refused, run

Serve = Callable[..., Server]


def _fill(server: Server) -> None:
    with blocking.connect(server.store) as store:
        for number, (kind, tags) in enumerate(
            [
                ("Defined", ["course:c1"]),
                ("Subscribed", ["course:c1", "student:s7"]),
                ("Subscribed", ["course:c2", "student:s7"]),
                ("Renamed", ["course:c2"]),
                ("Noted", []),
            ]
        ):
            store.append(f"a-{number}", [es.NewEvent(kind, b"1", tags=tags)], 0)


def _found(server: Server, *options: object) -> tuple[list[int], es.Position]:
    """Returns the sequences that a query prints, and the position that it ends at."""
    printed = run("query", *options, "--json", store=server.store)
    assert printed.returncode == 0, printed.stderr
    (last,) = printed.stderr.splitlines()
    return [json.loads(line)["sequence"] for line in printed.stdout.splitlines()], es.Position.parse(
        json.loads(last)["position"]
    )


def test_an_item_has_all_tags_and_one_of_the_types_and_a_query_one_of_the_items(serve: Serve) -> None:
    server = serve()
    _fill(server)

    def sequences(*options: object) -> list[int]:
        return _found(server, *options)[0]

    assert sequences("--tag", "course:c1") == [1, 2]
    assert sequences("--tag", "course:c1", "--tag", "student:s7") == [2]
    assert sequences("--type", "Defined", "--type", "Noted") == [1, 5]
    assert sequences("--type", "Renamed", "--tag", "course:c2") == [4]
    assert sequences("--tag", "course:c1", "--type", "Defined", "--or", "--tag", "student:s7") == [1, 2, 3]
    assert sequences("--type", "Noted", "--or", "--tag", "course:c2", "--type", "Renamed", "--or", "--tag=course:c1") == [
        1,
        2,
        4,
        5,
    ]
    assert sequences("--tag", "--or") == []  # a tag, as any other
    assert sequences() == [1, 2, 3, 4, 5]


def test_the_position_is_where_the_query_ended_and_a_condition_begins(serve: Serve) -> None:
    server = serve()
    _fill(server)
    nothing, end = _found(server, "--tag", "nobody")
    assert (nothing, end.shards[0][0]) == ([], 5)
    first, position = _found(server, "--tag", "student:s7", "--limit", 1)
    assert (first, position.shards[0][0]) == ([2], 2)
    assert _found(server, "--tag", "student:s7", "--after", position) == ([3], end)
    assert _found(server, "--tag", "student:s7", "--after", 3) == ([], end)
    with blocking.connect(server.store) as store:
        query = es.Query(tags=["student:s7"])
        write = es.Write("b", [es.NewEvent("Subscribed", b"1", tags=["student:s7"])], es.ANY)
        with pytest.raises(es.ConditionFailed):
            store.commit([write], unless=query, after=position, scope="a-2")
        assert store.commit([write], unless=query, after=end, scope="a-2")[0].version == 1


def test_lines_for_people_have_the_tags_and_end_with_the_position(serve: Serve) -> None:
    server = serve()
    _fill(server)
    printed = run("query", "--tag", "student:s7", "--type", "Subscribed", store=server.store)
    first, second = printed.stdout.splitlines()
    assert first.startswith("#2  a-1  v1  ")
    assert second.endswith("Subscribed  b'1'  tags course:c2, student:s7")
    assert str(es.Position.parse(printed.stderr.strip())) == printed.stderr.strip()


def test_what_is_no_query_is_refused(shared: Server) -> None:
    for options in (("--or", "--tag", "a"), ("--tag", "a", "--or"), ("--tag", "a", "--or", "--or", "--tag", "b")):
        told = refused("query", *options, store=shared.store, code=2)
        assert told == "on one side of an --or there is neither --tag nor --type; give one"
    assert "a tag has 0 bytes" in refused("query", "--tag", "", store=shared.store, code=2)
    many = [word for number in range(65) for word in ("--or", "--tag", str(number))]
    assert "a query of 65 items" in refused("query", *many[1:], store=shared.store, code=2)
    assert refused("query", "--after", "x", store=shared.store, code=2).startswith("--after is 'x', expected")
    assert refused("query", "--after", 10**9, store=shared.store).startswith("after is 1000000000, but the store ends at ")
