"""The leader of a shard dies while it sends what is due: the next one goes on, and each timer takes effect once."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.cluster.etcd.real_etcd import Etcd
from tests.cluster.replicas.three_nodes import ThreeNodes
from tests.server.commands.orders import Place
from tests.waiting import wait_until

pytestmark = pytest.mark.heavy
ORDERS = [f"order-{number}" for number in range(300)]


def test_the_next_leader_goes_on_with_what_is_due(tmp_path: Path, etcd: Etcd, cluster: str) -> None:
    with ThreeNodes(tmp_path, etcd, cluster, domain="tests.server.commands.orders:app") as three:
        with three.client() as store:
            commands = [(Place(name, f"{2000 + 10 * place}ms"), f"place-{name}") for place, name in enumerate(ORDERS)]
            assert len(store.send_many(commands)) == len(ORDERS)

            def ended() -> int:
                return sum(event.type == "$TimerEnded" for event in store.read_all(types=["$TimerEnded"]))

            wait_until(lambda: ended() >= 20, "some were sent")
            three.kill(three.leader())
            wait_until(lambda: ended() == len(ORDERS), "the next leader has sent the others")
            found = Counter((event.aggregate_id, event.type) for event in store.read_all())
            assert all(found[name, "Cancelled"] == 1 for name in ORDERS)
            assert all(found[f"$timers{{{name}}}", "$TimerEnded"] == 1 for name in ORDERS)
            hows = Counter(json.loads(event.data)["how"] for event in store.read_all(types=["$TimerEnded"]))
            assert hows == {"accepted": len(ORDERS)}
