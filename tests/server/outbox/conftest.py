from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.outbox import published_shop


@pytest.fixture
def broken() -> Iterator[set[str]]:
    """The addresses that the shop's functions cannot handle; a test may mend them, for itself."""
    before = set(published_shop.broken)
    yield published_shop.broken
    published_shop.broken |= before
