"""An etcd for all tests of a module, and a name for the cluster of each."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.cluster.etcd.real_etcd import Etcd, running


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with running(tmp_path_factory.mktemp("etcd")) as (one,):
        yield one


@pytest.fixture
def cluster() -> str:
    return f"c{uuid.uuid4().hex}"
