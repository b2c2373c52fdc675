"""An etcd for all tests of a module, a name for the cluster of each, and what this process logs."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from tests.cluster.etcd.real_etcd import Etcd, running
from tests.security.conftest import certificates as certificates


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with running(tmp_path_factory.mktemp("etcd")) as (one,):
        yield one


@pytest.fixture
def cluster() -> str:
    return f"c{uuid.uuid4().hex}"


@pytest.fixture
def logged() -> Iterator[list[EventDict]]:
    """What this process logs meanwhile."""
    with capture_logs() as events:
        yield events
