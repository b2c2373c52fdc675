"""A stream as a browser reads it, whose EventSource nobody here has written."""

from __future__ import annotations

from typing import Any

import pytest

from tests.console.conftest import browser  # noqa: F401 # a fixture
from tests.http_api.asking import Api
from tests.http_api.conftest import Serve

pytestmark = pytest.mark.heavy

READ = """([path, count]) => new Promise((resolve, reject) => {
    const found = [], source = new EventSource(path);
    const take = (event) => {
        found.push([event.type, event.lastEventId, JSON.parse(event.data)]);
        if (found.length === count) { source.close(); resolve(found); }
    };
    source.onmessage = take;
    source.addEventListener("caught-up", take);
    source.onerror = () => { if (source.readyState === 2) { reject(new Error("refused")); } };
})"""


def test_event_source_reads_what_was_appended(serve: Serve, browser: Any) -> None:  # noqa: F811
    server = serve()
    api = Api(server)
    texts = ["one", "two\nlines\r\n", "\u2028 x" * 50_000]
    api.append("a-1", "c-1", *({"type": "T", "data": each} for each in texts))
    page = browser.new_page()
    try:
        page.goto(f"{server.http}/console")
        found = page.evaluate(READ, ["/api/events?type=T", 4])
        assert [data["data"] for kind, _, data in found[:3]] == texts
        assert found[3][0] == "caught-up"
        rest = page.evaluate(READ, [f"/api/events?after={found[0][1]}", 3])
        assert [kind for kind, _, _ in rest] == ["message", "message", "caught-up"]
        assert rest[0][1] == found[1][1]
        with pytest.raises(Exception, match="refused"):
            page.evaluate(READ, ["/api/events?after=x", 1])
    finally:
        page.close()
