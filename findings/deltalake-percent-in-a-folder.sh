#!/usr/bin/env bash
# deltalake 1.6.6: a table in a folder with `%` in its name is written, and then not found.
#
# Expected: a name of a folder is a name, as it is for `write_deltalake` when it makes the folder: `a%2Fb` stays `a%2Fb`. Such names
# come about where a name that may have a slash is escaped in the usual way.
# Seen: the first commit creates the folder and its log, and then fails, because the log is read from the folder with the name
# decoded: "File not found: …/a/b/_delta_log/00000000000000000000.json". What was written is left there.
#
# Needs Python 3.11. Exits 0 while deltalake does this, 1 if it does something else.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet deltalake==1.6.6 pyarrow
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

write_deltalake(Path("plain"), pa.table({"n": [1]}), mode="append")
print("plain: written")
try:
    write_deltalake(Path("a%2Fb"), pa.table({"n": [1]}), mode="append")
except Exception as error:
    print(f"a%2Fb: {error}")
    assert "File not found" in str(error)
    print("left there:", *sorted(str(each) for each in Path("a%2Fb").rglob("*.json")))
else:
    raise SystemExit("a%2Fb: written")
PYTHON
