"""AsyncAPI documents of what domains publish, which its own parser accepts."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import eventstore as es
import eventstore.domain as d
from eventstore.domain.asyncapi import asyncapi
from tests.cli.processes import output

PARSER = "@asyncapi/parser@3.6.6"
PROGRAM = """
const { Parser } = require('@asyncapi/parser');
new Parser().parse(require('fs').readFileSync(process.argv[2], 'utf8')).then(({ document, diagnostics }) => {
  const errors = diagnostics.filter((each) => each.severity === 0).map((each) => [each.path.join('/'), each.message]);
  const names = (channel) => channel.messages().all().map((each) => each.name());
  const channels = document ? document.allChannels().all().map((each) => [each.address(), names(each)]) : null;
  console.log(JSON.stringify({ errors, channels }));
});
"""


@dataclass(frozen=True)
class Line:
    name: str
    price: tuple[int, str]


@d.event("order placed/2", version=2)
@dataclass(frozen=True)
class Placed:
    customer: str
    lines: list[Line] = field(default_factory=list)
    follows: Placed | None = None


@d.upcast("order placed/2", version=1)
def _(fields: dict[str, object]) -> dict[str, object]:
    return fields


@dataclass(frozen=True)
class Sent:
    address: str


class Order(d.Aggregate):
    @d.applies(Placed)
    @d.applies(Sent)
    def _(self, event: object) -> None:
        pass


@dataclass(frozen=True)
class Send:
    order: str
    address: str


app = d.Domain()


@app.handles(Send)
def send(command: Send, order: Order) -> None:
    order.apply(Sent(command.address))


@app.publishes("carriers", Sent)
def to_carriers(event: Sent, stored: es.Event) -> object:
    """The address alone."""
    return event.address


app.publishes_as_stored("orders", Placed, Sent)
app.publishes_as_cloudevents("integration", Placed)


def test_a_document_has_each_topic_with_its_messages() -> None:
    made = asyncapi(app, "Shop", "1.0.0", "all")
    assert {channel["address"]: [*channel["messages"]] for channel in made["channels"].values()} == {
        "carriers": ["Sent"],
        "orders": ["Sent", "order_placed_2"],
        "integration": ["order_placed_2"],
        "all": ["Sent", "order_placed_2"],
    }
    messages = made["components"]["messages"]
    assert messages["carriers.Sent"]["summary"] == "What to_carriers makes of the event Sent. The address alone."
    assert messages["integration.order_placed_2"]["contentType"] == "application/cloudevents+json"
    schemas = made["components"]["schemas"]
    assert messages["orders.order_placed_2"]["payload"] == {"$ref": "#/components/schemas/order_placed_2.2"}
    assert schemas["order_placed_2.2"]["properties"]["follows"]["anyOf"][0] == {"$ref": "#/components/schemas/order_placed_2.2"}
    line = schemas["order_placed_2.2"]["properties"]["lines"]["items"]["$ref"].rpartition("/")[2]
    assert schemas[line]["properties"]["price"]["items"] == [{"type": "integer"}, {"type": "string"}]


def test_every_reference_leads_somewhere() -> None:
    made = asyncapi(app, "Shop", "1.0.0", "all")

    def check(value: Any) -> int:
        if isinstance(value, list):
            return sum(map(check, value))
        if not isinstance(value, dict):
            return 0
        if "$ref" in value:
            found: Any = made
            for part in value["$ref"].removeprefix("#/").split("/"):
                found = found[part]
            return 1
        return sum(map(check, value.values()))

    assert check(made) > 10


def test_the_command_writes_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    out = tmp_path / "shop.asyncapi.json"
    place = "tests.domain.test_asyncapi:app"
    assert output("schema", "asyncapi", place, "-o", out) == f"3 channels with 4 messages written to {out}\n"
    assert json.loads(out.read_text()) == json.loads(output("schema", "asyncapi", place))
    assert json.loads(out.read_text())["info"] == {"title": place, "version": "1.0.0"}


@pytest.mark.long
def test_the_parser_of_asyncapi_accepts_it_and_finds_a_mistake(tmp_path: Path) -> None:
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        pytest.skip("npm is not installed, which has the parser of AsyncAPI")
    command = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", PARSER]
    if subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=300).returncode:
        pytest.skip(f"npm cannot get {PARSER}")
    (tmp_path / "parse.js").write_text(PROGRAM)

    def parsed(document: dict[str, Any]) -> dict[str, Any]:
        (tmp_path / "document.json").write_text(json.dumps(document))
        done = subprocess.run(
            [node, "parse.js", "document.json"], cwd=tmp_path, check=True, capture_output=True, text=True, timeout=100
        )
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    made = asyncapi(app, "Shop", "1.0.0", "all")
    found = parsed(made)
    assert found["errors"] == []
    assert sorted(address for address, _ in found["channels"]) == ["all", "carriers", "integration", "orders"]
    assert sorted(dict(found["channels"])["orders"]) == ["Sent", "order placed/2"]
    made["operations"]["send.orders"]["action"] = "publish"
    assert parsed(made)["errors"]
