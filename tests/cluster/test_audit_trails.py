"""The audit trails of a node's shards, which are aggregates of one name: each shard has its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE

import pytest

from eventstore import blocking
from eventstore.security.audit import AUDIT
from tests.cli.processes import output, start
from tests.cluster.node_process import NodeProcess
from tests.security.access_file import give

pytestmark = pytest.mark.heavy


class Audited(NodeProcess):
    """A node with identities, and trails of different lengths: one topic was made on all shards, one on shard 1 only."""

    def __init__(self, folder: Path) -> None:
        self.token = give(folder / "access", "ops", "admin")
        self.token_file = folder / "token"
        self.token_file.write_text(self.token)
        super().__init__(folder / "data", 2, access_file=str(folder / "access" / "access.json"))

    def arguments(self, *command: str) -> list[str]:
        return [*command, "--token-file", str(self.token_file), "--store", self.address]

    def shown(self, *command: str) -> str:
        return output(*self.arguments(*command), store=self.address)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Audited]:
    with Audited(tmp_path_factory.mktemp("audited")) as node:
        with blocking.connect(node.address, token=node.token) as store:
            store.broker.create_topic("orders")
            for shard in store.cluster_map().shards[1:]:
                with blocking.connect(f"tcp://{shard.leader}", token=node.token) as alone:
                    alone.broker.create_topic("payments")
        yield node
        assert node.terminate() == 0


def test_events_of_a_name_that_each_shard_has_are_shown_with_the_shard_they_are_from(node: Audited) -> None:
    with blocking.connect(node.address, token=node.token) as store:
        expected = [(shard, event.sequence) for shard in (0, 1) for event in store.shards[shard].read(AUDIT)]
    assert {shard for shard, _ in expected} == {0, 1}
    for command in (["tail", "--no-follow", "--json"], ["export", "--prefix", AUDIT]):
        lines = [json.loads(line) for line in node.shown(*command).splitlines()]
        assert sorted((line["shard"], line["sequence"]) for line in lines) == expected
    with start(*node.arguments("tail", "--after", "0", "--json"), stdout=PIPE, stderr=PIPE) as process:
        assert process.stdout is not None
        lines = [json.loads(process.stdout.readline()) for _ in expected]
        assert sorted((line["shard"], line["sequence"]) for line in lines) == expected
        process.terminate()
