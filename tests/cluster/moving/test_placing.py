"""Plans: even, with few bytes moved, zones apart, and refused where they cannot be."""

from __future__ import annotations

import random
import re
import uuid
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from eventstore.errors import InvalidArgument
from eventstore.records.cluster_map import ALL_SLOTS
from eventstore_cluster.nodes.moving.asking import moved
from eventstore_cluster.nodes.placing import balancing
from eventstore_cluster.nodes.placing.balancing import drain, rebalance, resize
from eventstore_cluster.nodes.placing.fleet import Fleet, Loads, PlacedNode, PlacedShard
from eventstore_cluster.nodes.placing.notes import notes
from eventstore_cluster.nodes.placing.placement import place
from eventstore_cluster.nodes.placing.plan import PlacementPlan
from eventstore_cluster.nodes.placing.survey import surveyed
from eventstore_cluster.nodes.splitting.plan import spread_leaders
from eventstore_cluster.registry.node_keys import NodeKey
from eventstore_cluster.registry.registry import RegistryEntry, RegistrySnapshot
from eventstore_cluster.registry.replicated_keys import ClusterKey, ShardKey
from eventstore_cluster.replica.registry_state import Pause, Seat, ShardState
from eventstore_cluster.status import Behind, ShardRow

GB = 1_000_000_000


def fleet(
    nodes: int, shards: int, *, added: int = 0, zones: int = 0, replicas: int = 3, even: bool = True, seed: int = 1
) -> Fleet:
    """Returns a cluster that was spread over `nodes`, and has `added` empty ones."""
    choice = random.Random(seed)
    names = [f"n{number + 1}" for number in range(nodes + added)]
    placed = place(names[:nodes], shards, replicas)
    return Fleet(
        {name: PlacedNode(name, f"z{at % zones}" if zones else "", 1000 * GB) for at, name in enumerate(names)},
        {
            number: PlacedShard(
                number, kept, kept[0], GB if even else choice.randint(1, 4) * GB, 0.0 if even else choice.random(), 2
            )
            for number, kept in enumerate(placed)
        },
    )


def after(before: Fleet, plan: PlacementPlan) -> dict[int, tuple[str, ...]]:
    return {**{number: shard.replicas for number, shard in before.shards.items()}, **{c.shard: c.wanted for c in plan.changes}}


def kept(replicas: dict[int, tuple[str, ...]]) -> Counter[str]:
    return Counter(name for names in replicas.values() for name in names)


def test_a_cluster_that_is_even_stays_as_it_is() -> None:
    assert rebalance(fleet(6, 60, even=True)).size == 0


def test_new_nodes_get_their_share_and_no_more_bytes_move_than_that_takes() -> None:
    before = fleet(3, 60, added=3)
    plan = rebalance(before)
    found = kept(after(before, plan))
    assert all(27 <= found[f"n{number}"] <= 33 for number in range(1, 7))
    assert plan.size <= 95 * GB, "90 replicas of 180 have to move"
    assert all(name in ("n4", "n5", "n6") for change in plan.changes for name in change.gained)
    leaders = Counter(plan_leader for *_, plan_leader in plan.nodes)
    assert max(after for *_, after in plan.nodes) - min(after for *_, after in plan.nodes) <= 2, leaders


@pytest.mark.parametrize("seed", range(8))
def test_no_plan_puts_two_replicas_of_a_shard_on_one_node_or_loses_one_and_a_second_one_has_nothing_to_do(seed: int) -> None:
    before = fleet(5, 40, added=3, zones=4, even=False, seed=seed)
    plan = rebalance(before)
    found = after(before, plan)
    assert all(len(set(names)) == len(names) == 3 for names in found.values())
    leaders = {change.shard: change.leader for change in plan.changes if change.leader is not None}
    again = Fleet(
        before.nodes,
        {
            number: PlacedShard(number, found[number], leaders.get(number, shard.leader), shard.size, shard.rate, 2)
            for number, shard in before.shards.items()
        },
    )
    assert rebalance(again).changes == ()
    zones = {name: node.zone for name, node in before.nodes.items()}
    assert all(len({zones[name] for name in names}) == 3 for names in found.values()), "each replica has a zone of its own"


def test_a_draining_node_gives_everything_away_and_gets_nothing() -> None:
    before = fleet(4, 40)
    plan = drain(before, "n2")
    found = after(before, plan)
    assert kept(found)["n2"] == 0
    assert plan.size == 30 * GB, "nothing else moves"
    assert all(change.leader is not None for change in plan.changes if before.shards[change.shard].leader == "n2")
    draining = Fleet({**before.nodes, "n2": PlacedNode("n2", takes=False, leaves=True)}, before.shards)
    assert kept(after(draining, rebalance(draining)))["n2"] == 0


@pytest.mark.parametrize("seed", range(4))
def test_appends_are_spread_as_bytes_and_replicas_are(seed: int) -> None:
    whole, choice = fleet(6, 120, replicas=2), random.Random(seed)
    rates = {number: choice.random() * (800 if "n1" in shard.replicas else 100) for number, shard in whole.shards.items()}
    before = Fleet(whole.nodes, {number: replace(shard, rate=rates[number]) for number, shard in whole.shards.items()})

    def most(replicas: dict[int, tuple[str, ...]]) -> float:
        """Returns what the busiest node takes, as a multiple of the mean."""
        taken = [sum(rates[number] for number, names in replicas.items() if name in names) for name in before.nodes]
        return max(taken) / (sum(taken) / len(taken))

    plan = rebalance(before)
    was = most({number: shard.replicas for number, shard in before.shards.items()})
    assert was > 2
    assert most(after(before, plan)) < 1 + (was - 1) / 2
    moved_off = [change for change in plan.changes if "n1" in change.lost]
    assert any(re.match(r"n1 takes [\d,]+ events/s, n\d takes [\d,]+ events/s", change.why) for change in moved_off)


def test_a_replica_that_weighs_as_much_as_two_nodes_differ_is_not_moved_back_and_forth(monkeypatch: pytest.MonkeyPatch) -> None:
    moves, move = 0, Loads.move

    def counted(*given: Any) -> None:
        nonlocal moves
        moves += 1
        assert moves <= 36, "no replica moves twice"
        move(*given)

    monkeypatch.setattr(Loads, "move", counted)
    grown = fleet(3, 12, added=1)
    assert rebalance(Fleet(grown.nodes, {n: replace(shard, size=n * GB) for n, shard in grown.shards.items()})).changes


def test_the_reason_of_a_change_is_what_it_was_chosen_by() -> None:
    def why(plan: PlacementPlan) -> list[str]:
        return [change.why for change in plan.changes]

    grown = fleet(3, 12, added=1)
    *_, last = why(rebalance(Fleet(grown.nodes, {n: replace(shard, size=n * GB) for n, shard in grown.shards.items()})))
    assert re.match(r"n\d has \d+\.0 GB, n4 has 0 B", last)
    zones = {"n1": "a", "n2": "a", "n3": "b"}
    shared = Fleet(
        {name: PlacedNode(name, zone, 9 * GB) for name, zone in zones.items()}, {0: PlacedShard(0, ("n1", "n2"), "n1", GB)}
    )
    assert why(rebalance(shared)) == ["zone a has it 2 times, zone b has none of it"]
    assert why(drain(shared, "n1")) == ["n1 is drained, and n3 has 0 B of the 2.0 GB of 3 nodes, zone b has none of it"]
    assert why(resize(shared, 3)) == ["is to have 3 replicas, and n3 has 0 B of the 2.0 GB of 3 nodes, zone b has none of it"]
    three = Fleet(shared.nodes, {0: PlacedShard(0, ("n1", "n2", "n3"), "n1", GB)})
    assert why(resize(three, 2)) == ["is to have 2 replicas, and n1 in zone a has it as well as n2"]
    led = Fleet(
        {name: PlacedNode(name) for name in ("n1", "n2")}, {n: PlacedShard(n, ("n1", "n2"), "n1", GB) for n in range(4)}
    )
    assert why(rebalance(led)) == ["n1 leads 4 of 4, n2 0", "n1 leads 3 of 4, n2 1"]
    away = Fleet({**three.nodes, "n3": PlacedNode("n3", takes=False)}, three.shards)
    assert why(resize(away, 2)) == ["is to have 2 replicas, and n3 does not run"]


def test_a_node_that_is_away_for_a_while_keeps_its_replicas() -> None:
    before = fleet(4, 40)
    away = Fleet({**before.nodes, "n2": PlacedNode("n2", takes=False)}, before.shards)
    assert rebalance(away).size == 0


def test_replicas_are_added_and_given_up_but_never_the_leader_nor_below_those_that_must_be_in_sync() -> None:
    before = fleet(4, 12, replicas=2)
    more = after(before, resize(before, 3))
    assert {len(names) for names in more.values()} == {3}
    less = fleet(4, 12)
    plan = resize(less, 2, [5])
    (change,) = plan.changes
    assert (change.shard, len(change.wanted), less.shards[5].leader in change.wanted) == (5, 2, True)
    with pytest.raises(
        InvalidArgument, match="shard 0 acknowledges what 2 replicas have, and would keep 1; ask for 2 at least"
    ):
        resize(less, 1)


def test_what_cannot_be_is_refused_with_what_stands_in_the_way() -> None:
    three = fleet(3, 6)
    with pytest.raises(InvalidArgument, match=r"no node can take another replica of shard \d: one is on n1, n2, n3\. Start"):
        drain(three, "n1")
    with pytest.raises(
        InvalidArgument, match=r"no node can take another replica of shard 0: one is on n1\. Start another node"
    ):
        drain(fleet(1, 1, replicas=1), "n1")
    others = {"n4": PlacedNode("n4", takes=False, leaves=True), "n5": PlacedNode("n5", takes=False)}
    with pytest.raises(InvalidArgument, match="one is on n1, n2, n3; draining: n4; not running: n5"):
        drain(Fleet({**three.nodes, **others}, three.shards), "n1")
    with pytest.raises(InvalidArgument, match="there is no node 'n9'; these are: n1, n2, n3"):
        drain(three, "n9")
    full = fleet(3, 6, added=1)
    full = Fleet({**full.nodes, "n4": PlacedNode("n4", free_bytes=GB)}, full.shards)
    with pytest.raises(InvalidArgument, match=r"one is on n1, n2, n3; less than 1,100,000,000 bytes free: n4\. "):
        drain(full, "n1")
    busy = Fleet(full.nodes, {**full.shards, 0: PlacedShard(0, ("n1", "n2", "n3"), "n1", busy="moves to n4, n2, n3")})
    with pytest.raises(InvalidArgument, match="shard 0 of n1 moves to n4, n2, n3: wait, or `eventstore cluster cancel 0`"):
        drain(busy, "n1")


def test_replicas_that_are_given_up_are_first_those_of_nodes_that_drain_or_do_not_run() -> None:
    whole = fleet(4, 12)
    for gone in (PlacedNode("n2", takes=False), PlacedNode("n2", takes=False, leaves=True)):
        plan = resize(Fleet({**whole.nodes, "n2": gone}, whole.shards), 2)
        led = {number for number, shard in whole.shards.items() if shard.leader == "n2"}
        assert {number for number, names in after(whole, plan).items() if "n2" in names} == led


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"target": "n9"}, "there is no node 'n9'; these are: n1, n2, n3, n4"),
        ({"target": "n3"}, "node n3 keeps a replica of shard 0 already"),
        ({"source": "n4", "target": "n3"}, "node 'n4' keeps no replica of shard 0: n1, n2, n3 do"),
        ({"shard": 7}, "there is no shard 7: `eventstore cluster status` shows those there are"),
        (
            {"node": PlacedNode("n4", takes=False, leaves=True)},
            "node n4 is draining; `eventstore cluster drain n4 --undo` ends that",
        ),
        ({"node": PlacedNode("n4", takes=False)}, "node n4 does not run: eventstore node --name n4"),
        (
            {"node": PlacedNode("n4", free_bytes=GB)},
            "node n4 has 1,000,000,000 bytes free, and the replica needs 1,100,000,000: make room, or name another node",
        ),
    ],
)
def test_a_move_that_cannot_be_is_refused_with_what_stands_in_the_way(given: dict[str, Any], said: str) -> None:
    whole = fleet(3, 1, added=1)
    target = given.get("node", whole.nodes["n4"])
    asked = given.get("shard", 0), given.get("source", "n1"), given.get("target", "n4")
    with pytest.raises(InvalidArgument) as refused:
        moved(Fleet({**whole.nodes, "n4": target}, whole.shards), *asked)
    assert str(refused.value) == said
    assert moved(whole, 0, "n1", "n4") == (("n4", "n2", "n3"), "n4")


def test_a_plan_says_which_shard_does_not_say_how_large_it_is() -> None:
    view = registered()
    before = surveyed(view, {})
    assert [each.silent for each in before.shards.values()] == [True]
    plan = resize(before, 2)
    assert [note for note in notes(before, plan) if "how large" in note] == [
        "Shard 0 does not say how large it is, and counts as empty: whether nodes have space for it is not known. "
        "`eventstore cluster status` shows why; plan again when there is an answer."
    ]
    row = ShardRow(0, "0-4095", "127.0.0.1:1", 4, log_bytes=GB)
    answered = surveyed(view, {0: row})
    assert moved(answered, 0, "n1", "n4")[0] == ("n4", "n2", "n3")
    assert not any("how large" in note for note in notes(answered, resize(answered, 2)))


@pytest.mark.parametrize(
    ("before", "wanted", "least", "needs"), [(1, 2, 1, 2), (3, 2, 2, 2), (3, 2, 1, 0), (1, 3, 1, 0), (2, 3, 2, 0)]
)
def test_a_plan_that_leaves_no_replica_to_spare_says_so(before: int, wanted: int, least: int, needs: int) -> None:
    whole = fleet(3, 2, replicas=before)
    whole = Fleet(whole.nodes, {number: replace(each, in_sync_min=least) for number, each in whole.shards.items()})
    said = [note for note in notes(whole, resize(whole, wanted)) if "then need" in note]
    expected = "Shards 0, 1 then need all 2 replicas: while one of them is away, appends are refused, whether it led or not."
    assert said == ([f"{expected} With 3 replicas one may fail."] if needs else [])


def test_a_plan_of_shards_without_a_leader_says_what_it_waits_for() -> None:
    whole = fleet(3, 2)
    unled = Fleet(whole.nodes, {**whole.shards, 1: replace(whole.shards[1], leader=None)})
    (*_, said) = notes(unled, resize(unled, 2))
    assert said.startswith("Shard 1 has no leader to carry this out: it waits until one of n1, n2, n3 leads.")
    assert not any("no leader" in note for note in notes(whole, resize(whole, 2)))


def test_a_plan_leaves_a_shard_alone_that_is_split_and_what_must_leave_it_is_refused_with_how_to_end_that() -> None:
    busy = surveyed(registered(split=(3,)), {})
    assert "shard 0 of n2 is being split: wait, or `eventstore cluster split 0 --call-off`" in refusal(busy)
    assert rebalance(busy).changes == resize(busy, 2).changes == ()
    with pytest.raises(InvalidArgument, match="shard 0 is being split: wait, or `eventstore cluster split 0 --call-off`"):
        resize(busy, 2, [0])
    wanted = surveyed(registered(wanted=("n1", "n4", "n3"), before=("n1", "n2", "n3")), {})
    assert "shard 0 of n4 moves to n1, n4, n3: wait, or `eventstore cluster cancel 0`" in refusal(wanted, "n4")
    paused = surveyed(registered(split=(3,), pause=Pause(True, "ann")), {})
    said = (
        "shard 0 of n2 is being split: paused by ann: `eventstore cluster resume 0` continues, or `eventstore cluster split 0"
    )
    assert said in refusal(paused), "which waiting would not end"


def test_space_that_copies_under_way_will_take_is_not_given_away_again() -> None:
    moving = registered(wanted=("n1", "n4", "n3"), before=("n1", "n2", "n3"))
    row = ShardRow(0, "0-4095", "127.0.0.1:3", 4, log_bytes=6 * GB)

    def free(behind: Behind | None) -> int | None:
        rows = {0: replace(row, behind={} if behind is None else {"n4": behind})}
        return surveyed(moving, rows).nodes["n4"].free_bytes

    assert free(None) == 4 * GB
    assert free(Behind(5.0, 2 * GB, 0.1)) == 8 * GB
    assert surveyed(registered(), {0: row}).nodes["n4"].free_bytes == 10 * GB


def registered(**wanted: Any) -> RegistrySnapshot:
    """Returns the registry of a shard on three nodes of four, of which something is wanted."""
    state = ShardState(4, frozenset(Seat(name, "i") for name in ("n1", "n2", "n3")), ("n1", "n2", "n3"), 2, **wanted)
    keys = {
        "cluster": ClusterKey(uuid.uuid4(), 1, 3, 2).value(),
        "shard/0": ShardKey(uuid.uuid4(), ALL_SLOTS, state).value(),
        **{f"node/n{at}": NodeKey(f"127.0.0.1:{at}", "r", "0", free_bytes=10 * GB).value() for at in range(1, 5)},
    }
    return RegistrySnapshot(9, {name: RegistryEntry(value, 9) for name, value in keys.items()})


def refusal(fleet: Fleet, name: str = "n2") -> str:
    with pytest.raises(InvalidArgument) as refused:
        drain(fleet, name)
    return str(refused.value)


def test_a_plan_for_a_hundred_nodes_looks_at_few_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = 0
    may_move = balancing._may_move

    def counted(*given: object) -> bool:
        nonlocal looked
        looked += 1
        return may_move(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(balancing, "_may_move", counted)
    plan = rebalance(fleet(50, 1000, added=50, zones=5, even=False))
    moves = sum(len(change.gained) for change in plan.changes)
    assert 1000 <= moves <= 1700, "half of 3,000 replicas"
    assert looked <= 100 * moves


def test_new_shards_are_led_by_the_nodes_that_lead_the_fewest() -> None:
    def firsts(leads: dict[str, int], count: int) -> list[str]:
        return [each[0] for each in spread_leaders(("n1", "n2", "n3"), leads, count)]

    assert firsts({"n1": 1}, 2) == ["n2", "n3"]
    assert firsts({"n1": 1, "n2": 1}, 3) == ["n3", "n3", "n1"]
    assert firsts({"n1": 3, "n2": 2}, 4) == ["n3", "n3", "n2", "n3"]
    assert spread_leaders(("n1", "n2", "n3"), {"n1": 1, "n2": 1}, 1) == [("n3", "n1", "n2")]


def test_no_new_shard_waits_for_a_node_that_does_not_run_though_that_leads_none() -> None:
    spread = spread_leaders(("n1", "n2", "n3"), {"n1": 2, "n3": 2}, 3, away={"n2"})
    assert [nodes[0] for nodes in spread] == ["n3", "n1", "n1"]
    assert spread_leaders(("n1", "n2"), {"n1": 1}, 2, away={"n1", "n2"}) == [("n2", "n1"), ("n1", "n2")]
