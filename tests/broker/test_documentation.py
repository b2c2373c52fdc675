"""docs/BROKER.md: its programs run, and its limits are those of the code."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from eventstore import NewEvent, blocking
from eventstore.broker import pulls, topics
from eventstore.broker.groups import group, offsets
from eventstore.broker.groups import group_registry as groups
from eventstore.broker.log import queue_reader as pulling
from eventstore.client.aio.store import NetworkStore
from eventstore.client.blocking.store import BlockingStore
from eventstore.records import message
from eventstore.records import topic_names as names
from tests.documents.pages import file_of, text_of
from tests.server_thread import ServerThread
from tests.waiting import wait_until

PAGE = (Path(__file__).parents[2] / "docs" / "BROKER.md").read_text(encoding="utf-8")


def test_the_program_without_a_server_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (source,) = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.M | re.S)
    assert "./messages" in source, "otherwise it would write into the working folder of the tests"
    exec(source.replace("./messages", str(tmp_path)), {"__name__": "page"})  # our own page
    assert capsys.readouterr().out.endswith("order-42 b'...'\n")


def test_the_consumer_of_published_events_prints_an_event_of_the_domain(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bank = ModuleType("bank")
    monkeypatch.setitem(sys.modules, "bank", bank)
    exec(file_of("bank.py", text_of("docs/CLIENT.md")), bank.__dict__)  # our own page
    with ServerThread(tmp_path / "data", broker_preallocate_bytes=64 * 1024, publish="events") as server:
        with blocking.connect(server.address) as store:
            store.append("acc-1", [NewEvent("Moved", {"cents": 100})], 0)
            wait_until(lambda: store.stats()["events_published"] == 1, "the event is published")
        capsys.readouterr()  # the server's log
        exec(file_of("accounts.py", PAGE).replace("tcp://127.0.0.1:7701", server.address), {"__name__": "page"})  # as above
        assert capsys.readouterr().out == "acc-1 1 Moved(cents=100)\n"


def test_the_options_of_a_consumer_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| `(\w+)` \|([^|]*)\|", PAGE.split("### Consuming")[1].split("Entering the consumer")[0], flags=re.M)
    for store in (NetworkStore, BlockingStore):
        _, *options = inspect.signature(store.consumer).parameters.values()
        assert [name for name, _ in rows] == [option.name for option in options]
        for (name, default), option in zip(rows, options, strict=True):
            if "`" in default:
                assert ast.literal_eval(default.strip(" `")) == option.default, name
            else:
                assert option.default in (option.empty, None), name


def test_the_limits_are_those_of_the_code() -> None:
    rows = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", PAGE.split("## Limits")[1].split("## ")[0], flags=re.M))
    assert rows["body"] == f"{message.BODY_BYTES_MAX >> 20} MiB"
    assert rows["key, tag"] == f"{message.TEXT_BYTES_MAX} bytes"
    assert rows["properties"] == f"{message.PROPERTIES_BYTES_MAX >> 10} KiB"
    assert (
        rows["queues of a topic"]
        == f"{topics.QUEUES_MAX}; topics {topics.TOPICS_MAX:,}; queues of all topics {topics.QUEUES_TOTAL_MAX:,}"
    )
    assert rows["members of a group"] == (
        f"{group.MEMBERS_MAX:,}; groups {groups.GROUPS_MAX:,}; queues that groups read, counted for each group, "
        f"{offsets.OFFSETS_MAX:,}"
    )
    assert rows["one pull"] == (
        f"{pulls.MESSAGES_MAX:,} messages, {pulls.PULL_BYTES_MAX >> 20} MiB, {pulls.WANTS_MAX:,} queues, "
        f"waits up to {pulls.WAIT_SECONDS_MAX:.0f} s"
    )
    assert rows["entries one pull looks at"] == f"{pulling.EXAMINED_MAX:,}"
    assert f"1 to {names.NAME_BYTES_MAX} of" in PAGE
