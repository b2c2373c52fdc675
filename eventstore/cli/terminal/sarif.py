"""Writes findings as SARIF 2.1.0, which code review tools show beside the lines of code."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from eventstore.domain.schema import Misfit

_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"


def sarif(findings: Sequence[Misfit], rules: Mapping[str, str], version: str, folder: Path) -> str:
    """Returns the text of a SARIF file. `rules`: each rule with its meaning; `folder`: what paths in it are relative to."""
    driver = {
        "name": "eventstore schema check",
        "version": version,
        "rules": [{"id": each, "shortDescription": {"text": meaning}} for each, meaning in rules.items()],
    }
    run = {"tool": {"driver": driver}, "results": [_result(each, folder) for each in findings]}
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, ensure_ascii=False, indent=2) + "\n"


def _result(finding: Misfit, folder: Path) -> dict[str, Any]:
    result: dict[str, Any] = {"ruleId": finding.rule, "level": "error", "message": {"text": finding.message}}
    place = None if finding.cls is None else _place(finding.cls, folder)
    if place is not None:
        result["locations"] = [{"physicalLocation": place}]
    return result


def _place(cls: type, folder: Path) -> dict[str, Any] | None:
    """Returns where a class is; None: it was not made from a file, or from one outside the folder."""
    try:
        path, line = inspect.getsourcefile(cls), inspect.getsourcelines(cls)[1]
    except (OSError, TypeError):
        return None
    if path is None or not Path(path).is_relative_to(folder):
        return None
    return {"artifactLocation": {"uri": Path(path).relative_to(folder).as_posix()}, "region": {"startLine": line}}
