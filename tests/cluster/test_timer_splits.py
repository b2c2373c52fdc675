"""Timers across a split: each is sent once, by the shard that has its aggregate."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from eventstore import blocking
from tests.cluster.led_shards import LedShards
from tests.server.commands.orders import Place, Remind
from tests.waiting import wait_until

ORDERS = [f"order-{number}" for number in range(16)]


@pytest.mark.parametrize("restarts", [False, True])
def test_each_timer_is_sent_once_by_the_shard_that_has_its_aggregate(tmp_path: Path, restarts: bool) -> None:
    with LedShards(tmp_path, 1, domain="tests.server.commands.orders:app") as cluster:
        with blocking.connect(cluster.address) as store:
            for each in ORDERS:
                store.send(Place(each, "1h"))
            assert len(store.timers()) == len(ORDERS)
        cluster.split(0, restarts=restarts)
        with blocking.connect(cluster.address) as store:
            listed = store.timers()
            assert Counter(each.aggregate_id for each in listed) == Counter(ORDERS)
            assert {each.shard for each in listed} == {0, 1}
            for each in ORDERS:
                store.run_now(each, "payment")
                store.send_later(Remind(each, "after the split"), after="1ms")
            ends = [f"$timers{{{each}}}" for each in ORDERS]

            def ended() -> Counter[str]:
                return Counter(event.aggregate_id for event in store.read_all() if event.type == "$TimerEnded")

            wait_until(lambda: ended() == Counter(dict.fromkeys(ends, 2)), "all have ended")
            found = Counter((event.aggregate_id, event.type) for event in store.read_all())
            assert all((found[each, "Cancelled"], found[each, "Reminded"]) == (1, 1) for each in ORDERS)
            assert store.timers() == []
