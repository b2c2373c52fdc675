"""Which replicas a registry is rebuilt with, and which accounts of the nodes are refused: no etcd is needed to decide that."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from eventstore.chunks.documents import Tree
from eventstore.errors import InvalidArgument
from eventstore.records.cluster_map import even_slots
from eventstore_cluster.nodes.rebuilding.choice import EPOCHS_SKIPPED, Choice, choose
from eventstore_cluster.nodes.rebuilding.rebuild import RebuildPlan, plan_of
from eventstore_cluster.registry.kept_keys import Kept, KeptShard, offer_keys, read_kept
from eventstore_cluster.registry.registry import RegistryEntry, RegistrySnapshot
from eventstore_cluster.registry.replica_keys import ReplicaKey
from eventstore_cluster.registry.replicated_keys import ClusterKey, ShardKey
from eventstore_cluster.replica.registry_state import Seat, ShardState

NODES = ("n1", "n2", "n3")
CLUSTER = ClusterKey(uuid.UUID(int=1), 1, 3, 2)
STATE = ShardState(4, frozenset(Seat(node, f"{node}-0") for node in NODES), NODES, 2, Seat("n1", "n1-0"))


def kept_shard(state: ShardState = STATE, revision: int = 10, number: int = 0, shards: int = 1) -> KeptShard:
    return KeptShard(revision, ShardKey(uuid.UUID(int=100 + number), even_slots(shards)[number], state))


def replica(node: str, *ends: tuple[int, int], led: bool = False, earlier: tuple[str, ...] | None = None) -> ReplicaKey:
    """A replica whose logs have these last epochs and end there in their first chunk: events, messages, documents."""
    reach = tuple((epoch, 1 if epoch else 0, end) for epoch, end in ends)
    was = (f"{node}-0",) if earlier is None else earlier
    epoch = max(epoch for epoch, _ in ends)
    return ReplicaKey(f"{node}-1", "run", epoch, tuple(each[1:] for each in reach), reach, led, was)


def chosen(*replicas: ReplicaKey, state: ShardState = STATE) -> Choice:
    return choose(0, {"n1": kept_shard(state)}, {key.incarnation[:2]: key for key in replicas}, 7)


def test_the_leader_of_the_last_epoch_goes_on_alone_in_a_new_generation() -> None:
    found = chosen(
        replica("n1", (4, 500), (4, 500), (4, 1), led=True),
        replica("n2", (4, 500), (4, 400), (4, 9)),  # the leader does not note the number of each document
        replica("n3", (3, 900), (3, 900), (3, 1), led=True),  # led before, and was not cut back yet
    )
    assert (found.node, found.risks) == ("n1", ())
    assert found.key.state == replace(
        STATE, in_sync=frozenset({Seat("n1", "n1-1")}), generation=7, leader=None, nonce=found.key.state.nonce
    )


def test_a_leader_that_wrote_only_documents_in_its_epoch_has_everything_committed_before() -> None:
    state = replace(STATE, epoch=5, in_sync=frozenset({Seat("n2", "n2-0"), Seat("n3", "n3-0")}))
    found = chosen(
        replica("n1", (4, 700), (4, 500), (4, 1), led=True),  # with bytes that nobody else had when it died
        replica("n2", (4, 600), (4, 500), (5, 1), led=True),
        replica("n3", (4, 600), (4, 500), (4, 8)),
        state=state,
    )
    assert (found.node, found.risks, found.key.state.epoch) == ("n2", (), 5)


def test_the_epoch_is_the_largest_that_anybody_knows() -> None:
    logs = [replica(node, (4, 1), (4, 1), (4, 1), led=node == "n1") for node in NODES]
    assert chosen(*logs, state=replace(STATE, epoch=9)).key.state.epoch == 9
    assert chosen(*logs, state=replace(STATE, epoch=3)).key.state.epoch == 4


def test_a_shard_in_which_nothing_was_written_goes_on_with_the_one_that_should_lead_first() -> None:
    new = replace(STATE, epoch=0, in_sync=frozenset(Seat(node, "new") for node in NODES), leader=None)
    found = chosen(*(replica(node, (0, 0), (0, 0), (0, 0), earlier=("new",)) for node in NODES), state=new)
    assert (found.node, found.risks, found.key.state.epoch) == ("n1", (), 0)


def test_a_replica_that_is_not_seen_is_a_risk_and_its_epochs_are_not_given_again() -> None:
    found = chosen(replica("n1", (4, 5), (4, 5), (4, 1), led=True), replica("n2", (4, 5), (4, 5), (4, 2)))
    assert (found.node, found.risks) == ("n1", ("shard 0: the replica on n3 is not seen",))
    assert found.key.state.epoch == 4 + EPOCHS_SKIPPED


def test_without_the_last_leader_it_is_the_replica_with_most_events_and_a_risk() -> None:
    found = chosen(*(replica(node, (4, end), (4, 5), (4, 2)) for node, end in zip(NODES, (5, 7, 6), strict=True)))
    assert (found.node, found.risks) == ("n2", ("shard 0: none that is seen led epoch 4, the last one",))


def test_two_that_led_the_same_epoch_are_a_risk() -> None:
    found = chosen(*(replica(node, (4, 5), (4, 5), (4, 1), led=node != "n3") for node in NODES))
    assert found.risks == ("shard 0: n1 and n2 both say that they led epoch 4, the last one",)


def test_a_last_leader_that_lacks_what_others_have_of_its_epoch_is_a_risk() -> None:
    found = chosen(
        replica("n1", (4, 5), (4, 5), (4, 1), led=True),
        replica("n2", (4, 5), (4, 6), (4, 2)),
        replica("n3", (4, 5), (4, 5), (4, 2)),
    )
    assert found.node == "n1"
    assert [risk.partition(" and may")[0] for risk in found.risks] == ["shard 0: n2 has more of epoch 4 than n1, which led it"]


def test_a_last_leader_with_another_folder_than_the_one_in_sync_is_a_risk() -> None:
    logs = [replica(node, (4, 5), (4, 5), (4, 2)) for node in NODES[1:]]
    restored = replica("n1", (4, 5), (4, 5), (4, 1), led=True, earlier=())
    assert "shard 0: n1 is none of those that were in sync" in chosen(restored, *logs).risks[0]
    dropped = replace(STATE, in_sync=frozenset({Seat("n2", "n2-0")}))
    original = replica("n1", (4, 5), (4, 5), (4, 1), led=True)
    assert "nodes last heard of it (n2)" in chosen(original, *logs, state=dropped).risks[0]


def test_copies_that_are_not_of_one_history_are_a_risk() -> None:
    logs = {node: replica(node, (4, 5), (4, 5), (4, 1), led=node == "n1") for node in NODES}
    older = replace(STATE, nonce="a").written_by("b")
    copies = {"n1": kept_shard(older, 10), "n2": kept_shard(older.written_by("c"), 11), "n3": kept_shard(older, 10)}
    assert choose(0, copies, logs, 7).risks == ()
    copies["n3"] = kept_shard(older.written_by("d"), 14)  # etcd was restored, and n2 has heard of what it does not know
    found = choose(0, copies, logs, 7)
    assert [risk.partition(" came")[0] for risk in found.risks] == [
        "shard 0: what n2 knows of it is not what the newest copy, of revision 14,"
    ]
    assert found.key.state.epoch == 4 + EPOCHS_SKIPPED
    copies["n1"] = kept_shard(replace(older, generation=2), 3)  # rebuilt since, at the word of a person
    assert choose(0, copies, logs, 7).risks == ()


def test_a_shard_no_replica_of_which_is_seen_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="no replica of shard 0 is seen: one of the nodes n1, n2, n3 is needed"):
        chosen()
    older = ReplicaKey("n1-1", "run", 4, ((1, 5), (1, 5), (4, 1)))  # its program does not say enough
    with pytest.raises(InvalidArgument, match="no replica of shard 0"):
        chosen(older)


def seen(*offers: tuple[str, Kept], more: dict[str, Tree] | None = None) -> RegistrySnapshot:
    """A registry with what nodes offer, and a replica of each shard on each of them that led the last epoch on n1."""
    keys: dict[str, Tree] = {key: value for node, kept in offers for key, value in offer_keys(node, kept).items()}
    for node, kept in offers:
        for number in kept.shards:
            keys[f"replica/{number}/{node}"] = replica(node, (4, 5), (4, 5), (4, 1), led=node == "n1").value()
    return RegistrySnapshot(30, {key: RegistryEntry(value, 20) for key, value in {**keys, **(more or {})}.items()})


def of_shards(*shards: KeptShard, cluster: ClusterKey = CLUSTER) -> Kept:
    return Kept(cluster, dict(enumerate(shards)))


def everywhere(kept: Kept) -> list[tuple[str, Kept]]:
    return [(node, kept) for node in NODES]


TWO = of_shards(kept_shard(number=0, shards=2), kept_shard(number=1, shards=2))


def states(plan: RebuildPlan) -> dict[int, ShardState]:
    return {choice.shard: choice.key.state for choice in plan.choices}


def test_what_a_node_keeps_is_read_again_as_it_was() -> None:
    assert read_kept("kept.json", TWO.value()) == TWO


def test_a_shard_that_the_registry_does_not_know_any_more_is_kept_and_named() -> None:
    whole = of_shards(kept_shard(), cluster=replace(CLUSTER, layout=1))
    split = Kept(replace(CLUSTER, layout=2, next_shard=2), TWO.shards)
    assert split.newest(whole) == split
    assert split.unknown_to(split.shards) is None
    kept = whole.newest(split)
    assert (kept.cluster, kept.shards[1]) == (split.cluster, split.shards[1])
    assert "etcd does not know shard 1" in (kept.unknown_to(whole.shards) or "")


def test_the_newest_account_of_a_shard_counts_and_all_shards_get_one_generation() -> None:
    rebuilt = kept_shard(replace(STATE, generation=3, in_sync_min=1), 2, 1, 2)
    newest = of_shards(kept_shard(replace(STATE, in_sync_min=3), 11, 0, 2), rebuilt)
    plan = plan_of(seen(("n1", TWO), ("n2", newest), ("n3", TWO)))
    assert (plan.cluster, plan.nodes, plan.risks) == (CLUSTER, NODES, [])
    assert {number: (state.in_sync_min, state.generation) for number, state in states(plan).items()} == {0: (3, 4), 1: (1, 4)}


def test_a_shard_that_an_earlier_attempt_has_written_stays_as_it_is() -> None:
    first = plan_of(seen(*everywhere(TWO)))
    written = {key: value for key, value in first.changes("ann").items() if key == "shard/0" and value is not None}
    assert [(key, value["leader_by"]) for key, value in written.items()] == [("shard/0", "ann")]
    again = plan_of(seen(*everywhere(TWO), more=written))
    assert states(again) == {1: states(first)[1]}
    other = {"shard/0": {**written["shard/0"], "store": uuid.UUID(int=9).hex}}  # of a creation that ended half way
    assert list(states(plan_of(seen(*everywhere(TWO), more=other)))) == [0, 1]


def test_accounts_that_do_not_make_one_whole_cluster_are_refused_by_what_differs() -> None:
    foreign = replace(CLUSTER, uuid=uuid.UUID(int=2))
    for offers, said in (
        ([], "no node offers what it knows"),
        ([("n1", TWO), ("n2", of_shards(*TWO.shards.values(), cluster=foreign))], f"n2 belongs to {foreign.uuid}"),
        ([("n1", of_shards(TWO.shards[0]))], "not the whole cluster: .*no shard owns slot 2048"),
        ([("n1", TWO), ("n2", of_shards(kept_shard()))], "nodes differ about shard 0: on n1 it is store .* with slots 0-2047"),
    ):
        with pytest.raises(InvalidArgument, match=said):
            plan_of(seen(*offers))
    with pytest.raises(InvalidArgument, match="the cluster exists in etcd"):
        plan_of(seen(*everywhere(TWO), more={"cluster": CLUSTER.value()}))


def test_an_offer_counts_when_all_of_it_is_written() -> None:
    whole = seen(*everywhere(TWO))
    partly = RegistrySnapshot(30, {key: entry for key, entry in whole.entries.items() if key != "offer/n2/1"})
    assert plan_of(partly).nodes == ("n1", "n3")
