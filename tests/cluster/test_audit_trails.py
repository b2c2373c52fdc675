"""The audit trails of a node's shards, which are aggregates of one name: each shard has its own."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE

import pytest

from eventstore import blocking
from eventstore.security.audit import AUDIT
from tests.cli.processes import output, refused, start
from tests.cluster.node_process import NodeProcess
from tests.console.http import Visitor
from tests.security.access_file import give

pytestmark = pytest.mark.heavy


class Audited(NodeProcess):
    """A node with identities."""

    def __init__(self, folder: Path, shards: int = 2) -> None:
        self.token = give(folder / "access", "ops", "admin")
        self.token_file = folder / "token"
        self.token_file.write_text(self.token)
        super().__init__(folder / "data", shards, access_file=str(folder / "access" / "access.json"))

    def arguments(self, *command: str) -> list[str]:
        return [*command, "--token-file", str(self.token_file), "--store", self.address]

    def shown(self, *command: str) -> str:
        return output(*self.arguments(*command), store=self.address)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Audited]:
    """A node whose shards have trails of different lengths: one topic was created on both, one on shard 1 alone."""
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


def test_the_trails_of_all_shards_are_shown_and_checked_at_the_address_of_a_node(node: Audited) -> None:
    lines = node.shown("audit").splitlines()
    assert [(line.split()[0], line.split("topic=")[1]) for line in lines] == [
        ("1@0", "orders"), ("1@1", "orders"), ("2@1", "payments"),
    ]  # fmt: skip
    found = [json.loads(line) for line in node.shown("audit", "--json").splitlines()]
    assert [(each["shard"], each["details"]["topic"]) for each in found] == [(0, "orders"), (1, "orders"), (1, "payments")]
    heads = [line.split(": ") for line in node.shown("audit", "--verify").splitlines()]
    assert [(shard, head.partition(":")[0]) for shard, head in heads] == [("shard 0", "1"), ("shard 1", "2")]
    assert node.shown("audit", "--verify", "--shard", "1", "--head", heads[1][1]) == f"{heads[1][1]}\n"
    assert [line.split()[0] for line in node.shown("audit", "--shard", "1").splitlines()] == ["1", "2"]
    refused(*node.arguments("audit", "--verify", "--shard", "0", "--head", heads[1][1]), code=1)
    assert "give --shard N, too" in refused(*node.arguments("audit", "--head", heads[1][1]), code=2)
    assert "there is no shard 2; there are 0 to 1" in refused(*node.arguments("audit", "--shard", "2"), code=2)


def test_read_shows_the_trail_of_the_shard_that_is_named_and_says_so_if_none_is(node: Audited) -> None:
    said = refused(*node.arguments("read", AUDIT), code=2)
    assert "`eventstore read --shard N`" in said
    assert "`eventstore audit` shows" in said
    lines = node.shown("read", AUDIT, "--shard", "1", "--json").splitlines()
    assert [(json.loads(line)["shard"], json.loads(line)["version"]) for line in lines] == [(1, 1), (1, 2)]
    assert "there is no shard 2; there are 0 to 1" in refused(*node.arguments("read", AUDIT, "--shard", "2"), code=2)


def test_the_console_leads_to_the_trail_of_each_shard(node: Audited) -> None:
    visitor = Visitor(node.http)
    assert visitor.sign_in(node.token).status == 303
    listed = visitor.get("/console/aggregates")
    (one,) = re.findall(r'href="([^"]+)">\$audit</a>', listed.text)
    choice = visitor.get(html.unescape(one))
    assert "Each shard has its own. shard 0 shard 1" in choice.words
    links = [html.unescape(each) for each in re.findall(r'href="([^"]+)">shard \d</a>', choice.text)]
    zero, one = (visitor.get(each) for each in links)
    assert "payments" not in zero.words
    assert "$audit of shard 1 at version 2" in one.words
    assert "payments" in one.words
    chain = html.unescape(re.findall(r'href="([^"]+)">what belongs to it</a>', one.text)[1])
    assert visitor.get(chain).status == 200
    assert "payments" in visitor.get(chain).words
    assert visitor.get(links[1].replace("shard=1", "shard=7")).status == 400
    log = visitor.get("/console/log").text
    for leads_on in (log, visitor.get(chain).text):
        chains = {
            html.unescape(each) for each in re.findall(r'href="([^"]+id=%24audit[^"]+)">what belongs to it</a>', leads_on)
        }
        assert chain in chains
        assert {visitor.get(each).status for each in chains} == {200}
        trails = {html.unescape(each) for each in re.findall(r'href="([^"]+)">\$audit</a>', leads_on)}
        assert any("of shard 1" in visitor.get(each).words for each in trails)


def test_the_trail_of_the_only_shard_of_a_node_is_shown_at_its_address(tmp_path: Path) -> None:
    with Audited(tmp_path, shards=1) as node:
        with blocking.connect(node.address, token=node.token) as store:
            store.broker.create_topic("orders")
        assert [line.split()[0] for line in node.shown("audit").splitlines()] == ["1"]
        assert [json.loads(line)["version"] for line in node.shown("read", AUDIT, "--shard", "0", "--json").splitlines()] == [1]
        assert node.terminate() == 0
