"""`eventstore schema`: schemas of a domain in a file, and what of it, or of a store, the code no longer takes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.processes import Server, line, output, run

pytestmark = pytest.mark.usefixtures("examples")
Serve = Callable[..., Server]
BEFORE = """
from dataclasses import dataclass
import eventstore.domain as d

@dataclass(frozen=True)
class Paint:
    wall: str
    colour: str

@dataclass(frozen=True)
class Painted:
    colour: str
    layers: int

class Wall(d.Aggregate):
    @d.applies(Painted)
    def _(self, event: Painted) -> None:
        pass

app = d.Domain()

@app.handles(Paint)
def paint(command: Paint, wall: Wall) -> None:
    wall.apply(Painted(command.colour, 1))
"""


def test_a_change_that_stored_events_do_not_fit_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, kept, sarif = tmp_path / "walls.py", tmp_path / "walls.schema.json", tmp_path / "found.sarif"
    code.write_text(BEFORE)
    assert output("schema", "export", "walls:app", "-o", str(kept)) == f"1 event and 1 command written to {kept}\n"
    assert json.loads(output("schema", "export", "walls:app")) == json.loads(kept.read_text())
    assert output("schema", "check", "walls:app", "--against", str(kept)) == f"the code fits {kept}\n"
    code.write_text(BEFORE.replace("    layers: int\n", "    thickness: float\n").replace("colour, 1", "colour, 1.0"))
    done = run("schema", "check", "walls:app", "--against", str(kept), "--sarif", str(sarif))
    assert done.returncode == 1
    assert done.stdout == (
        "event-field-removed: event 'Painted': field layers is gone\n"
        "event-field-required: event 'Painted': field thickness is new and has no default\n"
    )
    assert done.stderr == f"error: 2 things do not fit {kept}\n"
    (reported,) = json.loads(sarif.read_text())["runs"]
    assert [each["ruleId"] for each in reported["results"]] == ["event-field-removed", "event-field-required"]
    (place,) = reported["results"][0]["locations"]
    assert place["physicalLocation"] == {"artifactLocation": {"uri": "walls.py"}, "region": {"startLine": 10}}
    changed = code.read_text().replace(
        "@dataclass(frozen=True)\nclass Painted", '@d.event("Painted", version=2)\n@dataclass(frozen=True)\nclass Painted'
    )
    code.write_text(changed)
    done = run("schema", "check", "walls:app", "--against", str(kept), "--json")
    assert (done.returncode, [each["rule"] for each in json.loads(done.stdout)]) == (1, ["event-upcast"]), "there is none"
    upcast = (
        '\n\n@d.upcast("Painted", version=1)\ndef _(fields):\n    return {"thickness": fields.pop("layers") / 10, **fields}\n'
    )
    code.write_text(changed + upcast)
    assert output("schema", "check", "walls:app", "--against", str(kept)) == f"the code fits {kept}\n"
    output("schema", "export", "walls:app", "-o", str(kept))
    assert [*json.loads(kept.read_text())["events"]["Painted"]["versions"]] == ["1", "2"]
    code.write_text("no Python")
    done = run("schema", "check", "walls:app", "--against", str(kept))
    assert (done.returncode, "importing 'walls' raised SyntaxError" in done.stderr) == (2, True)
    kept.write_text("[]")
    code.write_text(BEFORE)
    done = run("schema", "check", "walls:app", "--against", str(kept))
    assert done.returncode == 2
    assert done.stderr == f"error: {kept}: the file is not what `eventstore schema export` writes\n"


def test_events_of_a_store_that_no_class_reads_are_found(serve: Serve) -> None:
    server = serve()
    output("import", "-", store=server.store, text=line("acc-1", "c-1", "Opened", {"owner": "Ada"}))
    check = ("schema", "check", "bank:app", "--against", server.store)
    assert output(*check) == f"the code fits {server.store}: 1 event read\n"
    lines = [line("acc-1", "c-2", "Deposited", {"dollars": 1}), line("wall-1", "c-1", "Painted", {"colour": "red"})]
    output("import", "-", store=server.store, text="\n".join(lines))
    done = run(*check)
    assert done.returncode == 1
    told = done.stdout.splitlines()
    assert told[0] == "event-unread: 'Painted' of aggregate 'wall-1', version 1: no class of the domain has this event"
    assert told[1].startswith(
        "event-unread: 'Deposited' of aggregate 'acc-1', version 2: event 'Deposited' does not match class"
    )
    done = run(*check, "--ignore", "Painted", "--ignore", "Deposited")
    assert done.returncode == 0
