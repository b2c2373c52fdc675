"""Writes a project to begin with."""

from __future__ import annotations

import importlib.util
import keyword
from pathlib import Path
from typing import Annotated, Final

import typer

from eventstore.cli.terminal.output import print_line
from eventstore.errors import InvalidArgument
from eventstore.fields import shown

_TEMPLATES: Final = {
    "{name}.py": "domain",
    "read_model.py": "read_model",
    "api.py": "api",
    "test_{name}.py": "tests",
    "pyproject.toml": "pyproject",
    "Containerfile": "containerfile",
    "compose.yml": "compose",
    "README.md": "readme",
}
_OTHERS: Final = ("read_model", "api")


def new(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder to create; its name is that of the module.")],
) -> None:
    """Write a project to begin with.

    It has a domain, its tests, a table, a web API, and a compose file that runs them. Nothing that exists is changed.

    \b
    Example:
      eventstore new shop
      cd shop && pytest && eventstore dev shop:app
    """
    name = _checked_name(folder.resolve().name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidArgument(f"{folder} exists, and is not empty; name another folder", field="folder", value=str(folder))
    templates = Path(__file__).parents[2] / "project"
    folder.mkdir(parents=True, exist_ok=True)
    for target, template in _TEMPLATES.items():
        text = (templates / f"{template}.txt").read_text(encoding="utf-8")
        (folder / target.replace("{name}", name)).write_text(text.replace("{name}", name), encoding="utf-8")
    print_line(f"{folder} is there: cd {folder} && pytest; README.md says how to go on")


def _checked_name(name: str) -> str:
    why = None
    if not name.isidentifier() or not name.isascii() or keyword.iskeyword(name):
        why = "is not the name of a module: use letters, digits and _"
    elif name in _OTHERS or importlib.util.find_spec(name) is not None:
        why = "is a module already"
    if why is not None:
        raise InvalidArgument(f"the folder's name {shown(name)} {why}, such as shop", field="folder", value=name)
    return name
