"""Answers the requests about alarms, at a server or node."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from itertools import chain

from eventstore.alarms.alarm import Alarm, AlarmState
from eventstore.alarms.alarms import Alarms
from eventstore.alarms.figure import labels_text
from eventstore.flat import Scalar
from eventstore.protocol import encode_ok
from eventstore.protocol.reaction_requests import ALARM_ROWS_MAX, ListAlarms, SilenceAlarm, TestAlarms
from eventstore.protocol.request_declaration import Request
from eventstore.server.feature import Route
from eventstore.server.net.connection import ServerConnection
from eventstore.server.net.gate import Gate
from eventstore.store.data_folder import ShardIdentity


def source_of(host: str, port: int, shard: ShardIdentity | None = None) -> str:
    """Returns who says that an alarm was raised: the machine, its address, and the shard of a cluster."""
    place = "" if shard is None else f", shard {shard.shard}"
    return f"{socket.gethostname()} {host}:{port}{place}"


def alarm_routes(gate: Gate, alarms: Alarms) -> dict[type[Request], Route]:
    """Returns the routes of the requests to look at alarms, to silence and to test them."""

    def list_(connection: ServerConnection, request_id: int, request: ListAlarms) -> None:
        rows = alarms.watch.alarms()[request.skip : request.skip + ALARM_ROWS_MAX]
        gate.send(connection, encode_ok(request_id, *chain.from_iterable(_row(alarms, each) for each in rows)))

    def silence(connection: ServerConnection, request_id: int, request: SilenceAlarm) -> None:
        alarms.silence(request.alarm, request.seconds, request.who, request.why)
        gate.send(connection, encode_ok(request_id))

    def test(connection: ServerConnection, request_id: int, request: TestAlarms) -> None:
        gate.send(connection, encode_ok(request_id, *alarms.test(request.who)))

    return {ListAlarms: list_, SilenceAlarm: silence, TestAlarms: test}


def _row(alarms: Alarms, alarm: Alarm) -> Sequence[Scalar]:
    silence = alarms.watch.silences.get(alarm.rule.name)
    silenced = (None, None, None) if silence is None else (silence.until_us, silence.who, silence.why)
    text = None if alarm.state is AlarmState.QUIET else alarm.text
    return alarm.rule.name, labels_text(alarm.labels), alarm.state.value, alarm.since_us, alarm.rule.text, text, *silenced
