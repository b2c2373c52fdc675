#!/usr/bin/env bash
# gunicorn 27.0.1: a master that was started as `python -m gunicorn` cannot be replaced by SIGUSR2, its documented upgrade.
#
# Expected: as of one started by the script `gunicorn`, a second master comes up and its workers answer.
# Seen: the new master is started as `python …/gunicorn/__main__.py`. So the folder of the package is the first on its path,
# and `import http` finds gunicorn's own package of that name, not the standard one: an application that needs the standard one,
# as each web framework does, cannot be loaded. The new master ends. The old one serves on, and only the log says why.
#
# Needs Python 3.11. Exits 0 while gunicorn does this, 1 if it does something else.
set -euo pipefail
folder=$(mktemp -d)
end() { cd /; sort -u "$folder/masters" | xargs -r kill 2>/dev/null || true; sleep 2; rm -rf "$folder"; }
trap end EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet gunicorn==27.0.1
cat > "$folder/app.py" <<'PYTHON'
from http.cookies import SimpleCookie  # as web frameworks do


def application(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [type(SimpleCookie()).__name__.encode()]
PYTHON
cd "$folder"
CANNOT="No module named 'http.cookies'"

# upgrade NAME COMMAND...: starts a master, asks for its successor, and prints what became of it.
upgrade() {
    local name=$1; shift
    "$@" --bind 127.0.0.1:0 --pid "$name.pid" --log-file "$name.log" app:application > "$name.err" 2>&1 &
    echo $! >> masters
    for _ in $(seq 100); do grep -q "Booting worker" "$name.log" 2>/dev/null && break; sleep 0.1; done
    began=$SECONDS
    kill -USR2 "$(cat "$name.pid")"
    for _ in $(seq 150); do
        [ -s "$name.pid.2" ] && cat "$name.pid.2" >> masters
        if grep -q "$CANNOT" "$name.log"; then echo "the application cannot be loaded"; return; fi
        if [ "$(grep -c "Booting worker" "$name.log")" -ge 2 ] && [ "$SECONDS" -ge "$((began + 3))" ]; then
            echo "a second master serves"; return
        fi
        sleep 0.1
    done
    echo "nothing happened"
}

"$folder/venv/bin/python" -c 'import gunicorn; print("gunicorn", gunicorn.__version__)'
by_script=$(upgrade script "$folder/venv/bin/gunicorn")
by_module=$(upgrade module "$folder/venv/bin/python" -m gunicorn)
echo "started by its script:  $by_script"
echo "started as a module:    $by_module"
grep -h "$CANNOT" module.log | head -1 || true
[ "$by_script" = "a second master serves" ] && [ "$by_module" = "the application cannot be loaded" ]
