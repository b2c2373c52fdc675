"""`eventstore mcp`: what an assistant's own library gets of it, as a process of its own, with the permissions of its token."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import eventstore as es
from eventstore import blocking
from tests.cli.processes import Server, environment, output

mcp = pytest.importorskip("mcp", reason="mcp is not installed")
pytestmark = pytest.mark.heavy
Serve = Callable[..., Server]


def asked(store: str, *calls: tuple[str, dict[str, Any]], token: str | None = None) -> list[Any]:
    """Starts the program as an assistant does. Returns what each call answers; an error as its text."""
    import anyio

    given = {**environment(), **({} if token is None else {"EVENTSTORE_TOKEN": token})}
    program = mcp.StdioServerParameters(command=sys.executable, args=["-m", "eventstore", "mcp", "--store", store], env=given)

    async def main() -> list[Any]:
        async with mcp.Client(program, read_timeout_seconds=60) as client:
            listed = await client.list_tools()
            assert all(tool.annotations.read_only_hint for tool in listed.tools)
            found: list[Any] = [sorted(tool.name for tool in listed.tools)]
            for name, arguments in calls:
                result = await client.call_tool(name, arguments)
                text = result.content[0].text
                found.append(text if result.is_error else json.loads(text))
            return found

    return anyio.run(main)


def test_an_assistant_looks_at_a_store(serve: Serve) -> None:
    server = serve()
    with blocking.connect(server.store) as store:
        store.append("order-1", [es.NewEvent("Placed", {"n": 1}, None, ["customer:7"]), es.NewEvent("Paid")], 0, "c-1")
        store.append("order-2", [es.NewEvent("Placed", {"n": 2})], 0, "c-2")
    names, listed, read, queried, stuck, figures, refused = asked(
        server.store,
        ("list_aggregates", {"prefix": "order-"}),
        ("read_aggregate", {"aggregate_id": "order-1", "limit": 1}),
        ("query_events", {"types": ["Placed"], "tags": ["customer:7"]}),
        ("explain_stuck", {}),
        ("stats", {}),
        ("read_aggregate", {"aggregate_id": "order-1", "limit": 1000}),
    )
    assert names == ["explain_stuck", "list_aggregates", "query_events", "read_aggregate", "stats"]
    found = [(each["aggregate_id"], each["version"]) for each in listed["aggregates"]]
    assert (found, listed["more"]) == ([("order-1", 2), ("order-2", 1)], False)
    assert ([each["data"] for each in read["events"]], read["next_version"]) == ([{"n": 1}], 2)
    assert [(each["aggregate_id"], each["tags"]) for each in queried["events"]] == [("order-1", ["customer:7"])]
    assert (stuck["attention"], stuck["projections"], figures["events"]) == (None, [], 3)
    assert "limit is 1000, allowed are 1 to 200" in refused


def test_it_sees_what_its_token_may_see(serve: Serve, tmp_path: Path) -> None:
    data = tmp_path / "secured"
    token = output("access", "add", "helper", "--grant", "read:open-", "--data", data).strip()
    server = serve(data=data)
    seen, hidden = asked(
        server.store,
        ("read_aggregate", {"aggregate_id": "open-1"}),
        ("read_aggregate", {"aggregate_id": "closed-1"}),
        token=token,
    )[1:]
    assert seen["events"] == []
    assert "permission" in hidden
