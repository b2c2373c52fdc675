"""README.md and docs/CLIENT.md: a strict type checker accepts their programs, and finds a mistyped name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documents.pages import STRICT, file_of, programs, run, text_of

README, PAGE = text_of("README.md"), text_of("docs/CLIENT.md")
PACKAGES = ("eventstore", "eventstore.domain", "eventstore_mailbox", "pyspark_eventstore")
PUBLIC = """
import eventstore as es

def own(
    network: es.NetworkStore, embedded: es.EmbeddedStore,
    topic: es.NetworkTopic, broker: es.NetworkBroker, consumer: es.Consumer,
) -> None: ...

async def given() -> None:
    async with es.connect("tcp://127.0.0.1:7701") as network, es.open_store("./data") as embedded:
        own(network, embedded, network.topic("orders"), network.broker, network.consumer("billing", "orders"))

def own_blocking(
    store: es.blocking.BlockingStore, topic: es.blocking.BlockingTopic,
    broker: es.blocking.BlockingBroker, consumer: es.blocking.BlockingConsumer,
) -> None: ...

with es.blocking.connect("tcp://127.0.0.1:7701") as store:
    own_blocking(store, store.topic("orders"), store.broker, store.consumer("billing", "orders"))
"""


async def checked(files: dict[str, str], folder: Path) -> list[str]:
    """Returns what `mypy --strict` prints about these files, as in a project of its own."""
    for name, source in files.items():
        (folder / name).write_text(source)
    return (await run(STRICT, folder)).stdout.decode().splitlines()


@pytest.mark.heavy
async def test_the_programs_pass_a_strict_type_checker(tmp_path: Path) -> None:
    shown = [source for source, _ in (*programs(README), *programs(PAGE))]
    files = {f"program_{number}.py": source for number, source in enumerate(shown)}
    files |= {name: file_of(name, PAGE) for name in ("bank.py", "test_bank.py")}
    assert await checked(files, tmp_path) == [f"Success: no issues found in {len(files)} source files"]


async def test_a_mistyped_name_is_found_by_a_type_checker(tmp_path: Path) -> None:
    source = "".join(f"import {package}\n{package}.NoSuchName\n" for package in PACKAGES)
    *errors, _ = await checked({"typos.py": source}, tmp_path)
    assert [line.rpartition("  ")[2] for line in errors] == ["[attr-defined]"] * len(PACKAGES), errors


async def test_what_is_returned_has_a_public_name(tmp_path: Path) -> None:
    assert await checked({"names.py": PUBLIC}, tmp_path) == ["Success: no issues found in 1 source file"]
