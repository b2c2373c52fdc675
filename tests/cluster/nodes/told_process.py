"""A process that says to its node what the settings of its start tell it to, and ends by itself with the next map."""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def main() -> int:
    channel = os.fdopen(os.dup(0), "rb")
    first: dict[str, Any] = json.loads(channel.readline())
    say({"following": {"role": "joining", "sits_out": first["replica"]["sit_out"]}})
    for told in json.loads(first["settings"]["says"]):
        say(told)
    for line in channel:
        message = json.loads(line)
        if "map" in message:
            return int(first["settings"]["code"])
        say({"answer": message["ask"], "value": {"healthy": True, "degraded": False} if message["what"] == "health" else None})
    return 0


def say(message: Any) -> None:
    os.write(0, json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
