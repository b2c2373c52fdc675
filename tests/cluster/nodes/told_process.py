"""A process that says to its node what the settings of its start tell it to, and ends as they tell it to."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

RUN_S = 0.6
"""A process that ended sooner than half a second is not taken for one that ended by itself."""


def main() -> int:
    begun = time.monotonic()
    channel = os.fdopen(os.dup(0), "rb")
    first: dict[str, Any] = json.loads(channel.readline())
    start = first["replica"]["sit_out"]
    for line in json.loads(first["settings"]["says"]):
        os.write(0, json.dumps(line).encode() + b"\n")
    os.write(0, json.dumps({"following": {"role": "joining", "sat_out": start}}).encode() + b"\n")
    if first["settings"]["ends"] is None:
        while channel.readline():
            pass
        return 0
    time.sleep(max(0.0, RUN_S - (time.monotonic() - begun)))
    return int(first["settings"]["ends"])


if __name__ == "__main__":
    sys.exit(main())
