"""A service under gunicorn and Celery whose client is made where it is imported: in the process that forks the workers."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import eventstore as es
from tests.client.forks.whole_files import celery_of

store = es.blocking.connect(os.environ["SERVICE_STORE"], name="service", reconnect_timeout=60)


def _stay_busy() -> None:
    """Uses the client where it was opened: each fork finds a connection with a request under way, and the lock taken."""
    pause = threading.Event()
    while not pause.wait(0.001):
        with suppress(es.EventStoreError):
            store.version("busy")


store.append("busy", [es.NewEvent("Begun", b"1")] * 3, es.ANY)
threading.Thread(target=_stay_busy, daemon=True).start()
tasks = celery_of(Path(os.environ["SERVICE_FOLDER"]))


def record(aggregate_id: str, number: int) -> dict[str, Any]:
    """Appends an event to an aggregate, and returns the aggregate's last one, read again."""
    stored = store.append(aggregate_id, [es.NewEvent("Recorded", {"n": number})], es.ANY, f"{aggregate_id}/{number}")
    last = next(store.read(aggregate_id, backwards=True, limit=1))
    return {
        "of": last.aggregate_id, "n": last.json()["n"], "last": last.version, "stored": stored.version,
        "version": store.version(aggregate_id), "pid": os.getpid(),
    }  # fmt: skip


@tasks.task(name="record")  # type: ignore[untyped-decorator] # Celery has no types
def record_in_pool(aggregate_id: str, number: int, dies_after_s: float | None) -> dict[str, Any]:
    """Does it for a task. `dies_after_s`: when its process is killed; elsewhere than in a task it would take the pool with it,
    whose children share the lock of their queue.
    """
    if dies_after_s is None:
        return record(aggregate_id, number)
    threading.Timer(dies_after_s, os.kill, (os.getpid(), signal.SIGKILL)).start()
    while True:
        record(aggregate_id, number)


def app(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
    """Does the same for a request."""
    query = parse_qs(environ["QUERY_STRING"])
    answer = json.dumps(record(query["id"][0], int(query["n"][0]))).encode()
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(answer)))])
    return [answer]
