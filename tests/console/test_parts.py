"""Charts, figures and payloads, without a server."""

from __future__ import annotations

import json
import re

from eventstore.client.options import ClientOptions
from eventstore.console.charts import HEIGHT, chart
from eventstore.console.console import Console
from eventstore.console.history import POINTS_MAX, History, summed
from eventstore.console.pages.actions import ACTIONS
from eventstore.console.pages.cluster import behind_text, said_of
from eventstore.console.pages.overview import Drawn
from eventstore.console.rendering import Rendering, count, moment, payload, size, span
from eventstore.console.subject import Subject
from tests.instructions import instructions

NAN = float("nan")


def test_a_chart_has_the_largest_points_at_the_top_and_gaps_where_nothing_is_known() -> None:
    times = [float(second) for second in range(0, 3600, 5)]
    values = [NAN if 1000 < at < 2000 else 10.0 if at == 3000 else 1.0 for at in times]
    drawn = chart(times, values, 'a "label" <b>')
    assert 'aria-label="a &#34;label&#34; &lt;b&gt;"' in drawn
    line = re.findall(r'class="line" d="([^"]+)"', drawn)[0]
    assert line.count("M") == 2
    heights = [float(each) for each in re.findall(r",([\d.]+)", line)]
    assert min(heights) == 3.0
    assert max(heights) <= HEIGHT - 1
    assert heights.count(3.0) == 1


def test_the_history_is_of_an_hour_and_takes_no_more_memory_after() -> None:
    history = History(dict, None)
    for look in range(POINTS_MAX * 2):
        history.take({"events": look * 50, "resident_bytes": 1000, "disk_free_bytes": 10_000_000 - look * 100}, look * 5.0)
    assert {len(each) for each in history.values.values()} == {POINTS_MAX}
    assert set(history.values["events"]) == {10.0}
    assert history.seconds_until_full is not None
    assert round(history.seconds_until_full) == round((10_000_000 - (POINTS_MAX * 2 - 1) * 100) / 20)


def test_a_counter_that_begins_again_makes_a_gap_and_no_negative_rate() -> None:
    history = History(dict, None)
    for at, events in ((0.0, 100), (5.0, 200), (10.0, 50), (15.0, 100)):
        history.take({"events": events}, at)
    assert [each for each in history.values["events"] if each == each] == [20.0, 10.0]


def test_the_figures_of_a_node_are_the_sums_of_the_shards_it_serves_and_of_a_lag_the_longest() -> None:
    shards = [
        {"serving": True, "events": 3, "poisoned": False, "projections_lag_microseconds": 5},
        {"serving": True, "events": 4, "projections_lag_microseconds": 3},
        {"serving": False, "events": 9},
    ]
    found = summed({"shards": shards, "attention": None})
    assert (found["events"], found["projections_lag_microseconds"]) == (7, 5)


def test_figures_are_written_for_people() -> None:
    assert [count(each) for each in (None, 1234567, 0.123, 12.34, 1234.5, 3.0, True)] == [
        "–",
        "1,234,567",
        "0.12",
        "12.3",
        "1,234",
        "3",
        "yes",
    ]
    assert [size(each) for each in (0, 2048, 3 << 30, None)] == ["0 B", "2.0 KiB", "3.0 GiB", "–"]
    assert [span(each) for each in (5, 90, 7200, 200_000, None)] == ["5.0 s", "1.5 min", "2.0 h", "2.3 d", "–"]
    assert moment(1_700_000_000_123_456) == "2023-11-14 22:13:20.123"
    assert moment(2**62) == f"{2**62} µs"


def test_json_is_coloured_and_folded_if_long() -> None:
    short = payload(b'{"a": "x<y", "n": -1.5, "t": [true, null]}')
    assert '<span class="key">&#34;a&#34;</span>' in short
    assert '<span class="text">&#34;x&lt;y&#34;</span>' in short
    assert '<span class="word">-1.5</span>' in short
    assert "<details>" not in short
    assert "<details>" in payload(b'{"a": "' + b"x" * 1000 + b'"}')


def test_text_that_is_not_json_reads_as_it_is() -> None:
    assert payload(b'say "a" & <b>,\nthen c', is_json=False) == "<pre>say &#34;a&#34; &amp; &lt;b&gt;,\nthen c</pre>"


def test_whatever_strangers_store_is_shown_and_does_nothing() -> None:
    for data in (
        b"<script>alert(1)</script>",
        b"\x1b[2J",
        b"\x00\xff",
        b'{"<b>": "\\u202e\x7f"}',
        "\u202e<i>".encode(),
        b"[" * 100_000,
    ):
        shown = payload(data)
        assert not re.search(r"<(script|b|i)>", shown)
        assert not {"\x1b", "\x00", "\x7f", "\u202e"} & set(shown)


def test_text_that_changes_its_direction_is_spelled_out_on_pages() -> None:
    page = Rendering()("live.html", {"live": {"warnings": ["a\u202eb<c>"], "charts": [], "figures": [], "until_full": None}})
    assert "a\\u202eb&lt;c&gt;" in page


def test_a_look_at_the_figures_and_what_is_drawn_of_it_is_little_work() -> None:
    look = 0
    console = Console(
        Subject("a", "tcp://127.0.0.1:1", lambda token, name: ClientOptions(), dict, None, is_local=True, folder="/")
    )
    drawn = Drawn(console)

    def one() -> None:
        nonlocal look
        look += 1
        figures = dict.fromkeys(
            ("events", "requests", "batches", "resident_bytes", "disk_free_bytes", "unsorted_files"), look * 7
        )
        console.history.take(figures, look * 5.0)
        console.render("live.html", {"live": drawn.values()})

    for _ in range(POINTS_MAX):
        console.history.take({"events": look, "resident_bytes": 1}, look * 5.0)
        look += 1
    one()
    assert instructions(one) < 400_000  # in 5 s; a processor makes more than 40 million in a second


def test_how_far_replicas_are_behind_is_said_in_words() -> None:
    figure = {
        "n2": {"seconds": 0.04, "bytes": 0, "silent_seconds": 0.1},
        "n3": {"seconds": 90.0, "bytes": None, "silent_seconds": None},
        "n4": {"seconds": 2.0, "bytes": 2048, "silent_seconds": 0.2},
    }
    assert behind_text(json.dumps(figure)) == "n3 away 1.5 min, n4 2.0 s 2.0 KiB, n2 0.0 s 0 B"
    for other in (None, "no JSON", "[]", '{"n2": {}}'):
        assert behind_text(other) is None


def test_a_pause_of_one_shard_says_that_it_is_resumed_by_itself_not_with_the_moves() -> None:
    says = ACTIONS["pause"].says
    assert "No replica is copied or taken out until moves are resumed. " in says({"shard": ""})
    one = says({"shard": "3"})
    assert "and it is not split, until shard 3 is resumed by itself. " in one
    assert "moves" not in one


def test_what_a_shard_and_the_registry_both_say_is_shown_once() -> None:
    assert said_of({"attention": "not in sync: n3"}, {"trouble": "not in sync: n3"}) == ["not in sync: n3"]
    assert said_of({"attention": "a file is damaged"}, {"trouble": "not in sync: n3"}) == [
        "a file is damaged",
        "not in sync: n3",
    ]
    assert said_of({"attention": None}, {}) == []
