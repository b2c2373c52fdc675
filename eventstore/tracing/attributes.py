"""The attributes of spans: names of our own, and, where they are asked for, those of OpenTelemetry's messaging conventions.

The messaging conventions (release 1.45) are not stable yet. As they ask for, a program opts into them by
`OTEL_SEMCONV_STABILITY_OPT_IN=messaging`, or `messaging/dup` for both.
"""

from __future__ import annotations

import os
from typing import Any, Final

_OPT_IN: Final = "OTEL_SEMCONV_STABILITY_OPT_IN"
_CONVENTIONAL: Final = {
    "topic": "messaging.destination.name",
    "queue": "messaging.destination.partition.id",
    "group": "messaging.consumer.group.name",
    "message_id": "messaging.message.id",
    "messages": "messaging.batch.message_count",
}


def own(**values: Any) -> dict[str, Any]:
    """Returns attributes of the event store."""
    return {f"eventstore.{name}": value for name, value in values.items() if value is not None}


def of_messages(operation: str, type_: str, **values: Any) -> dict[str, Any]:
    """Returns the attributes of an operation of the broker: `topic`, and of `queue`, `group`, `message_id`, `messages` those
    that there are. `type_`: send, receive or process.
    """
    wanted = {each.strip() for each in os.environ.get(_OPT_IN, "").split(",")}
    if not wanted & {"messaging", "messaging/dup"}:
        return own(**values)
    found = {"messaging.system": "eventstore", "messaging.operation.name": operation, "messaging.operation.type": type_}
    for name, value in values.items():
        if value is not None:
            found[_CONVENTIONAL[name]] = str(value) if name == "queue" else value
    return found | own(**values) if "messaging/dup" in wanted else found
