from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A database of the tests, with Django's tables."""
    path = tmp_path_factory.mktemp("database") / "read.db"
    os.environ |= {"DATABASE_URL": f"sqlite:{path}", "DJANGO_SETTINGS_MODULE": "order_service.settings"}
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)
    yield path
    from django.db import connections

    connections.close_all()


@pytest.fixture
def client(database: Path) -> object:
    from django.test import Client

    return Client(raise_request_exception=False)
