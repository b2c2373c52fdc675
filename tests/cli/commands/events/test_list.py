from __future__ import annotations

import json
from collections.abc import Callable

from tests.cli.processes import Server, line, output

Serve = Callable[..., Server]


def test_aggregates_are_listed_in_order_with_their_versions(serve: Serve) -> None:
    server = serve()
    lines = [line(f"order-{number:04}", "c", "T", number) for number in range(1_200)]
    output("import", "-", store=server.store, text="\n".join([*lines, line("cart-1", "c"), line("cart-1", "d")]))
    shown = output("list", store=server.store).splitlines()
    assert shown[:2] == ["cart-1  v2", "order-0000  v1"]
    assert len(shown) == 1_201
    assert output("list", "order-", "--limit", 1, "--after", "order-0007", store=server.store) == "order-0008  v1\n"
    assert json.loads(output("list", "cart", "--json", store=server.store)) == {"aggregate_id": "cart-1", "version": 2}
    assert output("list", "nothing", store=server.store) == ""
