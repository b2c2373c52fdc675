"""What is missing is named with a command that installs it: the libraries themselves, as the package declares them."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from eventstore.extras import PACKAGE, advice

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
USED = {
    found
    for folder in ("eventstore", "cluster", "spark_jobs", "benchmarks")
    for path in (ROOT / folder).rglob("*.py")
    for found in re.findall(r"advice\(['\"](\w+)['\"]\)", path.read_text())
}


@pytest.mark.parametrize("extra", sorted(USED))
def test_the_advice_names_the_libraries_of_the_extra(extra: str) -> None:
    head, _, command = advice(extra).partition(": ")
    assert head == f"install the extra {extra}"
    pip, install, *named = shlex.split(command)
    assert (pip, install) == ("pip", "install")
    declared = PROJECT["optional-dependencies"][extra]
    assert sorted(map(str, map(Requirement, named))) == sorted(map(str, map(Requirement, declared)))


def test_a_package_that_was_copied_and_not_installed_is_named_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eventstore.extras.PACKAGE", "eventstore-of-nowhere")
    assert advice("tls") == "install the extra tls: pip install 'eventstore-of-nowhere[tls]'"


def test_the_name_of_the_package_is_that_of_the_project() -> None:
    assert PROJECT["name"] == PACKAGE
    assert {"console", "cluster", "spark", "postgres", "tls"} <= USED


def test_no_other_place_says_how_an_extra_is_installed() -> None:
    modules = [path for folder in ("eventstore", "cluster", "spark_jobs", "mailbox") for path in (ROOT / folder).rglob("*.py")]
    assert [path.name for path in modules if "pip install" in path.read_text()] == ["extras.py"]
