"""docs/deploy: the files have the form of what they are, and their commands exist."""

from __future__ import annotations

import configparser
import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from eventstore.settings.server import ServerSettings
from eventstore.settings.setting_declaration import declared_settings
from tests.cli.processes import run
from tests.documents.pages import ROOT

DEPLOY = ROOT / "docs" / "deploy"
UNITS = sorted(DEPLOY.glob("*.service"))
COMPOSE = sorted(DEPLOY.glob("compose*.yml"))
_CONTAINERFILE = (DEPLOY / "Containerfile").read_text(encoding="utf-8")


def check_command(arguments: Sequence[str]) -> None:
    """Fails if a command or an option of a command line does not exist."""
    shown = run(*arguments, "--help")  # which is printed once all options were found
    assert shown.returncode == 0, shown.stderr


def test_a_command_or_option_that_does_not_exist_would_be_found() -> None:
    for wrong in (["serve", "--no-such-option"], ["cluster", "conquer"]):
        with pytest.raises(AssertionError, match="No such"):
            check_command(wrong)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_of_systemd_is_sound_and_shut(unit: Path, tmp_path: Path) -> None:
    parsed = configparser.ConfigParser(interpolation=None, strict=False)
    parsed.optionxform = str  # type: ignore[assignment,method-assign] # names of systemd have upper case
    parsed.read_string(unit.read_text(encoding="utf-8"))
    service = parsed["Service"]
    program, *arguments = service["ExecStart"].split()
    assert program == "/opt/eventstore/bin/eventstore"
    check_command(arguments)
    assert service["RestartPreventExitStatus"] == "2"
    assert (service["ProtectSystem"], service["NoNewPrivileges"], service["DynamicUser"]) == ("strict", "yes", "yes")
    assert f"/var/lib/{service['StateDirectory']}" in arguments
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    launcher = tmp_path / "eventstore"
    launcher.write_text("#!/bin/sh\n")
    launcher.chmod(0o755)
    checked = tmp_path / unit.name
    checked.write_text(unit.read_text(encoding="utf-8").replace(program, str(launcher)))
    result = subprocess.run(["systemd-analyze", "verify", str(checked)], capture_output=True, text=True, timeout=60)
    said = [line for line in result.stderr.splitlines() if unit.name in line]
    assert said == [], result.stderr


def instructions() -> Iterator[tuple[str, str]]:
    for line in _CONTAINERFILE.replace("\\\n", " ").splitlines():
        if line.strip() and not line.startswith("#"):
            name, _, rest = line.partition(" ")
            yield name, rest


def test_the_containerfile_has_the_form_of_one_and_runs_as_nobody_who_may_do_much() -> None:
    found = list(instructions())
    known = {"FROM", "WORKDIR", "COPY", "RUN", "USER", "ENV", "VOLUME", "EXPOSE", "STOPSIGNAL", "ENTRYPOINT", "CMD"}
    assert {name for name, _ in found} <= known
    last = dict(found)  # of the last stage, since that sets each again
    assert last["USER"] != "0"
    assert json.loads(last["ENTRYPOINT"]) == ["eventstore"]
    check_command(json.loads(last["CMD"]))
    variables = [part.partition("=")[0] for part in last["ENV"].split()]
    check_variables(name for name in variables if name != "PATH")


def check_variables(names: Any) -> None:
    known = {each.variable for each in declared_settings(ServerSettings).values()}
    assert set(names) <= known


@pytest.mark.parametrize("file", COMPOSE, ids=lambda file: file.name)
def test_a_compose_file_is_sound_and_its_commands_exist(file: Path) -> None:
    yaml = pytest.importorskip("yaml")
    found = yaml.safe_load(file.read_text(encoding="utf-8"))
    volumes, targets = set(found["volumes"]), {rest.rpartition(" AS ")[2] for name, rest in instructions() if " AS " in rest}
    for name, service in found["services"].items():
        build = service["build"]
        assert (file.parent / build["context"] / build["dockerfile"]).is_file()
        assert build.get("target") in {None, *targets}
        if service["image"] == "eventstore":
            check_command([str(each) for each in service["command"]])
            check_variables(service.get("environment", {}))
        assert set(service.get("depends_on", ())) <= set(found["services"]), name
        assert {each.partition(":")[0] for each in service.get("volumes", ()) if not each.startswith(".")} <= volumes
