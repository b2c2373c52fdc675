from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable

import pytest

from tests.cli.processes import Server, fork, line, output, refused, run, start, wait_for

Serve = Callable[..., Server]


def _fill(server: Server, count: int) -> None:
    lines = [line(f"aggregate-{number % 3}", f"c-{number}", f"Type{number % 2}", number) for number in range(count)]
    output("import", "-", store=server.store, text="\n".join(lines))


def test_the_last_events_are_shown_in_commit_order(serve: Serve) -> None:
    server = serve()
    _fill(server, 25)
    shown = output("tail", "--no-follow", "--json", store=server.store).splitlines()
    assert [json.loads(item)["sequence"] for item in shown] == list(range(16, 26))
    everything = output("tail", "--no-follow", "--after", 0, "--json", store=server.store).splitlines()
    assert [json.loads(item)["data"] for item in everything] == list(range(25))
    some = output(
        "tail", "--no-follow", "--after", 0, "--type", "Type1", "--prefix", "aggregate-2", "--json", store=server.store
    )
    assert [json.loads(item)["data"] for item in some.splitlines()] == [5, 11, 17, 23]
    assert "aggregate-0" in output("tail", "--no-follow", store=server.store)


def test_new_events_follow_the_stored_ones(serve: Serve) -> None:
    server = serve()
    _fill(server, 3)
    out, err = server.data.with_suffix(".out"), server.data.with_suffix(".err")
    with open(out, "wb") as stdout, open(err, "wb") as stderr:
        tail = fork("tail", "--after", 0, "--json", "--store", server.store, stdout=stdout, stderr=stderr)
    try:
        wait_for(lambda: "caught up at sequence 3" in err.read_text(), "the subscription catches up")
        output("append", "late", "--type", "T", "--data", "1", store=server.store)
        wait_for(lambda: len(out.read_text().splitlines()) == 4, "the new event arrives")
        assert json.loads(out.read_text().splitlines()[-1])["aggregate_id"] == "late"
    finally:
        tail.send_signal(signal.SIGINT)
        assert tail.wait(30) == 130
    assert err.read_text().splitlines() == ["caught up at sequence 3; waiting for more (Ctrl-C ends)"]


def test_only_new_events_are_shown_from_the_end_on(serve: Serve) -> None:
    server = serve()
    _fill(server, 3)
    out, err = server.data.with_suffix(".out"), server.data.with_suffix(".err")
    with open(out, "wb") as stdout, open(err, "wb") as stderr:
        tail = fork("tail", "--end", "--aggregate", "o-1", "--json", "--store", server.store, stdout=stdout, stderr=stderr)
    try:
        wait_for(lambda: "caught up at sequence 3" in err.read_text(), "the subscription begins")
        for name in ("o-10", "o-1"):
            output("append", name, "--type", "T", "--data", "1", store=server.store)
        wait_for(lambda: out.read_text().endswith("\n"), "the new event arrives")
        assert [json.loads(each)["sequence"] for each in out.read_text().splitlines()] == [5]
    finally:
        tail.send_signal(signal.SIGINT)
        assert tail.wait(30) == 130


def test_tail_goes_on_at_the_position_that_it_printed_last(serve: Serve) -> None:
    server = serve()
    _fill(server, 3)
    told = run("tail", "--no-follow", "--after", 0, "--position", store=server.store).stderr.splitlines()
    output("append", "late", "--type", "T", "--data", "1", store=server.store)
    shown = run("tail", "--no-follow", "--after", told[-1], "--position", "--json", store=server.store)
    assert [json.loads(each)["sequence"] for each in shown.stdout.splitlines()] == [4]
    position = json.loads(shown.stderr.splitlines()[-1])["position"]
    again = run("tail", "--no-follow", "--after", position, "--position", store=server.store)
    assert (again.stdout, again.stderr.splitlines()) == ("", [position])


def test_a_tail_that_is_interrupted_says_after_which_event(serve: Serve) -> None:
    server = serve()
    _fill(server, 3)
    out, err = server.data.with_suffix(".out"), server.data.with_suffix(".err")
    with open(out, "wb") as stdout, open(err, "wb") as stderr:
        tail = fork("tail", "--end", "--position", "--store", server.store, stdout=stdout, stderr=stderr)
    try:
        wait_for(lambda: "caught up at sequence 3" in err.read_text(), "the subscription begins")
        output("append", "late", "--type", "T", "--data", "1", store=server.store)
        wait_for(lambda: out.read_text().endswith("\n"), "the new event arrives")
    finally:
        tail.send_signal(signal.SIGINT)
        assert tail.wait(30) == 130
    output("append", "later", "--type", "T", "--data", "2", store=server.store)
    (shown,) = output("tail", "--no-follow", "--after", err.read_text().splitlines()[-1], store=server.store).splitlines()
    assert shown.startswith("#5  later")


def test_events_are_shown_with_their_time_to_the_microsecond(shared: Server) -> None:
    output("import", "-", store=shared.store, text=line("timed", "c", timestamp="2026-01-31T13:00:00.000007+01:00"))
    assert "2026-01-31T12:00:00.000007+00:00" in output("read", "timed", store=shared.store)
    times = ("--from-time", "2026-01-31T12:00:00.000007Z", "--to-time", "2026-01-31T12:00:00.000007Z")
    shown = output("tail", "--no-follow", "--after", 0, "--aggregate", "timed", *times, "--json", store=shared.store)
    assert json.loads(shown)["timestamp"] == "2026-01-31T12:00:00.000007+00:00"


@pytest.mark.parametrize("command", ["tail", "tail --no-follow", "export", "read a"])
def test_times_between_which_there_is_nothing_are_refused(shared: Server, command: str) -> None:
    times = ("--from-time", "2026-02-01T00:00:00Z", "--to-time", "2026-02-01T00:00:00+01:00")
    told = refused(*command.split(), *times, store=shared.store, code=2)
    assert told == "--from-time 2026-02-01T00:00:00Z is after --to-time 2026-02-01T00:00:00+01:00: no event is"


def test_the_end_does_not_go_with_another_beginning_or_without_following(shared: Server) -> None:
    assert refused("tail", "--end", "--after", 3, store=shared.store, code=2).endswith("does not go with --after")
    assert refused("tail", "--end", "--no-follow", store=shared.store, code=2).endswith("does not go with --no-follow")


def test_backwards_the_newest_events_come_first_and_the_position_continues(serve: Serve) -> None:
    server = serve()
    _fill(server, 25)

    def sequences(*options: object) -> tuple[list[int], str]:
        shown = run("tail", "--backwards", "--json", "--position", *options, store=server.store)
        assert shown.returncode == 0, shown.stderr
        return [json.loads(item)["sequence"] for item in shown.stdout.splitlines()], json.loads(shown.stderr)["position"]

    first, position = sequences("--limit", 10)
    assert first == list(range(25, 15, -1))
    rest, _ = sequences("--before", position)
    assert rest == list(range(15, 0, -1))
    assert sequences("--before", 8, "--type", "Type1", "--prefix", "aggregate-")[0] == [6, 4, 2]
    newest = output("tail", "--backwards", "--limit", 1, store=server.store)
    assert newest.startswith("#25  ")


def test_a_limit_ends_a_command_that_follows(serve: Serve) -> None:
    server = serve()
    _fill(server, 5)
    shown = output("tail", "--after", 1, "--limit", 3, "--json", store=server.store).splitlines()
    assert [json.loads(item)["sequence"] for item in shown] == [2, 3, 4]


def test_backwards_does_not_go_with_a_beginning_for_reading_forwards(shared: Server) -> None:
    for option in ("--after", 3), ("--end",):
        told = refused("tail", "--backwards", *option, store=shared.store, code=2)
        assert told.endswith(f"does not go with {option[0]}")
    assert "is for --backwards" in refused("tail", "--before", 3, store=shared.store, code=2)
    assert refused("tail", "--backwards", "--before", "x", store=shared.store, code=2).startswith("--before is 'x', expected")


def test_what_is_neither_a_sequence_nor_a_position_is_refused(shared: Server) -> None:
    for command in "tail", "export":
        told = refused(command, "--after", "1.5", store=shared.store, code=2)
        assert told == "--after is '1.5', expected a sequence, such as 0, or a position, as --position prints it"


@pytest.mark.parametrize("command", ["tail", "tail --no-follow", "export"])
def test_a_sequence_after_the_end_is_refused_since_the_store_lost_what_came_before_it(shared: Server, command: str) -> None:
    told = refused(*command.split(), "--after", 10**9, store=shared.store)
    assert told.startswith("after is 1000000000, but the store ends at ")


def test_a_closed_pipe_ends_quietly(serve: Serve) -> None:
    server = serve()
    _fill(server, 5_000)
    reading = start("export", "--store", server.store, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert reading.stdout is not None
    assert reading.stderr is not None
    assert reading.stdout.readline()
    reading.stdout.close()
    errors = reading.stderr.read()
    assert (reading.wait(30), errors) == (1, b"")
    reading.stderr.close()
    assert run("tail", "--no-follow", store=server.store).returncode == 0
