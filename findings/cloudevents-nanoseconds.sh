#!/usr/bin/env bash
# cloudevents 2.2.0: the Python SDK of CloudEvents cuts a time to microseconds.
#
# Expected: an event that is read and written again says the time that it came with. RFC 3339, which CloudEvents 1.0.2 names for
# `time`, has any number of digits behind the point, and producers in Go, Java and Rust write nine.
# Seen: the last three digits are gone, without an error, in structured and in binary mode. So an event that went through the SDK
# is another one, for who compares times or signs events.
#
# Needs Python 3.11. Exits 0 while the SDK does this, 1 if it does something else.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet cloudevents==2.2.0
"$folder/venv/bin/python" - <<'PYTHON'
import json

from cloudevents.core.bindings import http

TIME = "2026-01-31T12:00:00.123456789Z"
event = {"specversion": "1.0", "id": "1", "source": "/s", "type": "T", "time": TIME}
structured = http.to_structured_event(http.from_structured_event(http.HTTPMessage({}, json.dumps(event).encode())))
headers = {f"ce-{name}": value for name, value in event.items()}
binary = http.to_binary_event(http.from_binary_event(http.HTTPMessage(headers, b"")))
found = json.loads(structured.body)["time"], binary.headers["ce-time"].replace("%3A", ":")
print(f"sent {TIME}, structured {found[0]}, binary {found[1]}")
raise SystemExit(0 if found == ("2026-01-31T12:00:00.123456Z",) * 2 else 1)
PYTHON
