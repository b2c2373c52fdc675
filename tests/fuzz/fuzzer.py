"""Sends made-up requests to a server and holds it to its promises: every request gets an answer, and others are served.

A payload may be anything; only the frame around it is whole, so the connection has to stay usable. What has no answer by the
protocol is not waited for: CREDIT, and a subscription or a pull that was ended.
"""

from __future__ import annotations

import struct
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field

import eventstore as es
from eventstore.client.blocking.store import BlockingStore
from eventstore.flat import encode
from eventstore.protocol.answers import Failure
from eventstore.protocol.broker_requests import Pull
from eventstore.protocol.request_declaration import DECLARATIONS, Request, code_of
from eventstore.protocol.requests import Credit, Map, Ping, Subscribe, SubscribeMatching, Unsubscribe
from tests.fuzz.request_maker import RequestMaker, Values
from tests.server.raw import RawClient

REQUESTS_A_ROUND = 50
LATE_S = 0.05
LATE_TO_BEFORE = 5
MEMORY_BYTES_MAX = 600 * 1024 * 1024
"""Far below the sum of the bounds of OPERATIONS: these requests are small, so nothing they leave may be large."""
_ROUNDS_BEFORE = 100
_ENDLESS = frozenset(kind for kind, declared in DECLARATIONS.items() if declared.waits and kind is not Pull)
"""They may wait for ever, until they are ended."""
_SILENT = (Credit, Subscribe, SubscribeMatching, Map)  # a MAP with a mistake may wait for another version


@dataclass(slots=True)
class Report:
    """What happened. `answers`: how many of each kind or error. `unanswered`: requests that got no answer."""

    rounds: int = 0
    requests: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    unanswered: list[str] = field(default_factory=list)
    latencies_s: list[float] = field(default_factory=list)
    before_s: list[float] = field(default_factory=list)

    @property
    def p99_s(self) -> float:
        """The 99th percentile of the healthy client's appends."""
        return _p99(self.latencies_s)

    @property
    def p99_before_s(self) -> float:
        """The same, before there was anything else."""
        return _p99(self.before_s)

    @property
    def late(self) -> bool:
        """Whether the healthy client waits for much longer than before: as `benchmarks.neighbours` judges, on any machine."""
        return self.p99_s > max(LATE_S, LATE_TO_BEFORE * self.p99_before_s)


def _p99(taken_s: list[float]) -> float:
    return sorted(taken_s)[int(len(taken_s) * 0.99)] if taken_s else 0.0


def fuzz(port: int, seed: int, rounds: int) -> Report:
    """Runs rounds: each sends requests on a connection, waits for their answers, and has another client append once."""
    report = Report()
    with es.blocking.connect(f"tcp://127.0.0.1:{port}") as healthy:
        for _ in range(_ROUNDS_BEFORE):
            report.before_s.append(_append(healthy))
        for number in range(rounds):
            client = RawClient(port)
            try:
                _round(client, RequestMaker(f"{seed}/{number}"), report)
            finally:
                client.close()
            report.latencies_s.append(_append(healthy))
            report.rounds += 1
    return report


def _append(healthy: BlockingStore) -> float:
    """Returns how long it took."""
    began, name = time.perf_counter(), f"healthy-{uuid.uuid4().hex}"
    assert healthy.append(name, [es.NewEvent("Healthy", b"x")], 0).version == 1
    return time.perf_counter() - began


def _round(client: RawClient, maker: RequestMaker, report: Report) -> None:
    waited: dict[int, str] = {}
    endless: list[int] = []
    for request_id in range(1, REQUESTS_A_ROUND + 1):
        kind, values = maker.request()
        payload = _payload(request_id, kind, values)
        garbled = maker.chance(0.05)
        if garbled:
            payload = maker.garbled(payload)
        if kind in (Subscribe, SubscribeMatching):
            maker.subscriptions.append(request_id)
        if kind in _ENDLESS:
            endless.append(request_id)
        elif kind not in _SILENT:
            waited[request_id] = f"{DECLARATIONS[kind].name} {values!r:.300}{' garbled' if garbled else ''}"
        client.send_payload(payload)
        report.requests += 1
    last = REQUESTS_A_ROUND + 1
    for each in endless:
        waited[last] = f"UNSUBSCRIBE {each}"
        client.send_payload(_payload(last, Unsubscribe, [each]))
        last += 1
    waited[last] = "PING"
    client.send_payload(_payload(last, Ping, []))
    _await_answers(client, waited, report)


def _payload(request_id: int, kind: type[Request], values: Values) -> bytes:
    return b"\xcf" + struct.pack(">Q", request_id) + encode([code_of(kind), *values])


def _await_answers(client: RawClient, waited: dict[int, str], report: Report) -> None:
    while waited:
        try:
            request_id, answer = client.answer()
        except TimeoutError:
            report.unanswered += waited.values()
            return
        report.answers[type(answer.error).__name__ if isinstance(answer, Failure) else type(answer).__name__] += 1
        waited.pop(request_id, None)
