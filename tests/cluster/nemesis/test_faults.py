"""What a round may break follows from its time, and from what is possible here; the rest is named with its reason."""

from __future__ import annotations

import pytest

from tests.cluster.nemesis.faults import ALL, AWAY_S, impossible, in_time


@pytest.mark.parametrize(("network", "disk", "lacking"), [
    (True, True, set()), (False, True, {"cut"}), (True, False, {"full"}), (False, False, {"cut", "full"}),
])  # fmt: skip
def test_what_only_root_may_do_is_named_with_what_is_lacking(network: bool, disk: bool, lacking: set[str]) -> None:
    found = impossible(network=network, disk=disk)
    assert found.keys() == lacking <= set(ALL)
    assert all("root" in why for why in found.values())


def test_etcd_is_away_for_a_minute_in_rounds_that_have_one_left_and_in_no_other() -> None:
    assert AWAY_S >= 60
    assert in_time(ALL, AWAY_S) == list(ALL)
    assert in_time(ALL, AWAY_S - 1) == [kind for kind in ALL if kind != "etcd away"]
