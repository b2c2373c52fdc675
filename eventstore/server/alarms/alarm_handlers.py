"""Answers the requests about alarms, at a server or node."""

from __future__ import annotations

import socket

from eventstore.alarms.alarm import Alarm, AlarmState
from eventstore.alarms.alarms import Alarms
from eventstore.alarms.figure import labels_text
from eventstore.protocol import encode_answer
from eventstore.protocol.reaction_requests import ALARM_ROWS_MAX, ListAlarms, SilenceAlarm, TestAlarms
from eventstore.protocol.request_declaration import Request
from eventstore.protocol.server_info import AlarmInfo
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
        found = alarms.watch.alarms()[request.skip : request.skip + ALARM_ROWS_MAX]
        gate.send(connection, encode_answer(request_id, ListAlarms, [_row(alarms, each) for each in found]))

    def silence(connection: ServerConnection, request_id: int, request: SilenceAlarm) -> None:
        alarms.silence(request.alarm, request.seconds, request.who, request.why)
        gate.send(connection, encode_answer(request_id, SilenceAlarm, None))

    def test(connection: ServerConnection, request_id: int, request: TestAlarms) -> None:
        gate.send(connection, encode_answer(request_id, TestAlarms, list(alarms.test(request.who))))

    return {ListAlarms: list_, SilenceAlarm: silence, TestAlarms: test}


def _row(alarms: Alarms, alarm: Alarm) -> AlarmInfo:
    silence = alarms.watch.silences.get(alarm.rule.name)
    silenced = (None, None, None) if silence is None else (silence.until_us, silence.who, silence.why)
    text = None if alarm.state is AlarmState.QUIET else alarm.text
    subject, rule = labels_text(alarm.labels), alarm.rule
    return AlarmInfo(rule.name, subject, alarm.state.value, alarm.since_us, rule.text, text, *silenced)
