"""What an append says about the replicas that have it, and what one gets that asks for all of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import eventstore as es
from eventstore.errors import NotEnoughReplicas
from tests.cluster.etcd.real_etcd import Etcd
from tests.cluster.replicas.three_nodes import ThreeNodes
from tests.waiting import wait_until

pytestmark = pytest.mark.heavy


def event(number: int) -> list[es.NewEvent]:
    return [es.NewEvent("Counted", {"number": number})]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory, etcd: Etcd) -> Iterator[ThreeNodes]:
    with ThreeNodes(tmp_path_factory.mktemp("three"), etcd, "receipts") as nodes:
        yield nodes


@pytest.mark.long
def test_a_commit_says_on_how_many_replicas_it_is_and_one_for_all_is_refused_while_they_are_not_there(
    three: ThreeNodes,
) -> None:
    follower = three.followers()[0]
    with three.client() as store:
        assert store.append("a", event(0), 0, "c-0").durability == 3
        assert store.append("a", event(1), 1, "c-1", replicas="all").durability == 3
        with three.paused(follower):
            late = store.append("a", event(2), 2, "c-2", replicas="all")  # written to all, of which one does not have it
            assert (late.version, late.duplicate, late.durability) == (3, False, 2)
            with pytest.raises(NotEnoughReplicas, match="3 replicas must be in sync") as refused:
                store.append("a", event(3), 3, "c-3", replicas="all")
            assert (refused.value.needed, refused.value.have) == (3, 2)
            assert store.version("a") == 3, "nothing was stored"
            outcomes = store.append_many([es.Commit("b", event(0), es.ANY), es.Commit("a", event(2), 2, "c-2")], replicas="all")
            assert isinstance(outcomes[0], NotEnoughReplicas)
            assert outcomes[1] == late._replace(duplicate=True), "what is stored is not refused"
            with pytest.raises(es.VersionConflict):
                store.append("a", event(3), 2, replicas="all")
            assert store.append("a", event(3), 3, "c-4").durability == 2
        three.wait_until_in_sync()
        wait_until(lambda: store.append("a", event(2), 2, "c-2").durability == 3, "the leader knows that all are in sync")
        found = store.find_command("a", "c-0")
        assert found is not None
        assert found.durability == 3
        assert store.append("a", event(4), 4, replicas="all").durability == 3


@pytest.mark.long
def test_a_commit_for_all_that_is_sent_again_to_a_new_leader_is_found_there(three: ThreeNodes) -> None:
    leader = three.leader()
    with three.client() as store:
        first = store.append("d", event(0), 0, "c-0", replicas="all")
        three.kill(leader)
        again = store.append("d", event(0), 0, "c-0", replicas="all")  # the same client
        assert again == first._replace(duplicate=True, durability=2)
        with pytest.raises(NotEnoughReplicas):
            store.append("d", event(1), 1, replicas="all")
        assert store.append("d", event(1), 1).durability == 2
        three.start(leader)
        three.wait_until_in_sync()
