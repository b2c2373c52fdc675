"""`eventstore reactions` at the address of several shards: about all of them, as at that of one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from eventstore import InvalidArgument, blocking
from eventstore.records.cluster_map import even_slots
from eventstore.records.slots import slot_of
from tests.cli.processes import output, refused, run
from tests.cluster.led_shards import LedShards
from tests.server.commands import echoes
from tests.waiting import wait_until

SHARDS = 3
CALLERS = [f"caller-{number}" for number in range(12)]
BY_SHARD = [
    [each for each in CALLERS if any(first <= slot_of(each) <= last for first, last in slots)] for slots in even_slots(SHARDS)
]


@pytest.fixture
def parked(tmp_path: Path) -> Iterator[str]:
    """Starts three shards, each with parked events; yields the address of their entry."""
    echoes.failing.clear()
    echoes.failing.update(dict.fromkeys(CALLERS, "a bug in a reaction"))
    with LedShards(tmp_path, SHARDS, domain="tests.server.commands.echoes:app") as cluster:
        cluster.publish()
        with blocking.connect(cluster.address) as store:
            store.send_many([echoes.Call(each, number) for each in CALLERS for number in (1, 2)])
            wait_until(lambda: sum(each.parked for each in store.reactions.progress()) == 2 * len(CALLERS), "all are parked")
        yield cluster.address
    echoes.failing.clear()


def test_reactions_of_all_shards_are_listed_shown_retried_skipped_and_replayed(parked: str) -> None:
    listed = json.loads(output("reactions", "list", "--json", store=parked))
    assert [(each["name"], each["shard"], each["parked"]) for each in listed] == [
        ("echo", shard, 2 * len(callers)) for shard, callers in enumerate(BY_SHARD)
    ]
    assert output("reactions", "list", store=parked).split()[:2] == ["shard", "reaction"]
    shown = json.loads(output("reactions", "show", "echo", "--json", store=parked))
    assert [each["shard"] for each in shown] == sorted(each["shard"] for each in shown)
    assert {(each["aggregate_id"], each["shard"]) for each in shown} == {
        (caller, shard) for shard, callers in enumerate(BY_SHARD) for caller in callers
    }
    assert output("reactions", "show", "echo", store=parked).split()[:2] == ["shard", "aggregate"]

    failed = run("reactions", "retry", "echo", store=parked)
    assert (failed.returncode, failed.stdout) == (1, "0 events done; 24 events of echo still parked\n")
    last = BY_SHARD[2][0]
    echoes.failing.pop(last)
    skipped = output("reactions", "skip", "echo", last, "--because", "by hand", store=parked)
    assert skipped == "2 events done; 22 events of echo still parked\n"
    echoes.failing.clear()
    first = BY_SHARD[0][0]
    retried = output("reactions", "retry", "echo", "--aggregate", first, store=parked)
    assert retried == "2 events done; 20 events of echo still parked\n"
    assert output("reactions", "retry", "echo", store=parked) == "20 events done; echo has nothing parked\n"
    assert output("reactions", "show", "echo", store=parked) == "echo has nothing parked\n"
    assert "there is no reaction 'other'" in refused("reactions", "show", "other", store=parked, code=2)

    replay = ("reactions", "replay", "echo", "--because", "after all")
    assert output(*replay, "--from", 1, store=parked) == "echo continues after sequence 0\n"
    told = refused(*replay, "--from", 2, store=parked, code=2)
    assert told == "each of the 3 shards has its own sequences: give --shard N, too"
    assert output(*replay, "--from", 2, "--shard", 1, store=parked) == "echo continues after sequence 1\n"
    assert refused(*replay, "--from", 2, "--shard", 3, store=parked, code=2) == "there is no shard 3; there are 0 to 2"


def test_what_all_shards_have_parked_is_paged_as_one_list(parked: str) -> None:
    with blocking.connect(parked) as store:
        everything = store.reactions.parked("echo")
        assert [store.reactions.parked("echo", skip) for skip in range(26)] == [everything[skip:] for skip in range(26)]
        with pytest.raises(InvalidArgument, match="sequence 2 is about one shard, and this cluster has 3"):
            store.reactions.replay("echo", 2, who="ann", why="after all")
