"""Tests use the example of the documentation as their domain."""

from __future__ import annotations

import pytest

from tests.examples import EXAMPLES


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets processes import the domains of the documentation."""
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES))
