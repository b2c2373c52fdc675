"""Finding a domain, or a projection, by `module:attribute`."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from eventstore.domain.domain import Domain
from eventstore.domain.handling import text_of
from eventstore.domain.projection import Projection
from eventstore.errors import DomainRefused
from eventstore.fields import shown


def load(place: str, folder: str | Path | None = None) -> Domain:
    """The domain at `module:attribute`, checked. The module is looked for in `folder` first (default: the current one).

    Raises:
        DomainRefused: the module cannot be imported, has no such attribute, or the domain is not fit to run.
    """
    found = _attribute("domain", place, folder)
    if not isinstance(found, Domain):
        raise _refused("domain", place, f"is {shown(found)}, and no eventstore.domain.Domain")
    found.check()
    return found


def load_projection(place: str, folder: str | Path | None = None) -> Projection[Any]:
    """The projection at `module:attribute`, an instance or a class to be made without arguments; else as `load`."""
    found = _attribute("projection", place, folder)
    if isinstance(found, type) and issubclass(found, Projection):
        try:
            found = found()
        except TypeError as error:
            raise _refused("projection", place, f"cannot be made without arguments: {error}") from None
    if not isinstance(found, Projection):
        raise _refused("projection", place, f"is {shown(found)}, and no eventstore.domain.Projection")
    return found


def _attribute(what: str, place: str, folder: str | Path | None) -> object:
    name, colon, attributes = place.partition(":")
    if not colon or not all(part.isidentifier() for part in [*name.split("."), *attributes.split(".")]):
        raise DomainRefused(f"{what} {shown(place)} is not of the form module:attribute", place=place[:255])
    found: object = _module(what, name, place, Path(folder) if folder is not None else Path.cwd())
    for attribute in attributes.split("."):
        if not hasattr(found, attribute):
            raise _refused(what, place, f"{shown(found)} has no attribute {attribute!r}")
        found = getattr(found, attribute)
    return found


def _module(what: str, name: str, place: str, folder: Path) -> ModuleType:
    path = str(folder.resolve())
    if path not in sys.path:
        sys.path.insert(0, path)  # for good: a module may import its neighbours later
        importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except DomainRefused as error:
        raise _refused(what, place, f"module {name!r} is refused: {error.message}", **error.fields) from error
    except ModuleNotFoundError as error:
        if error.name == name:
            raise _refused(what, place, f"there is no module {name!r} in {path} or on the path of Python") from None
        raise _refused(what, place, f"module {name!r} imports {error.name!r}, which is not there") from error
    except (Exception, SystemExit) as error:  # importing runs the author's code
        raise _refused(
            what, place, f"importing {name!r} raised {type(error).__name__}: {text_of(error)}{_line(error)}"
        ) from error


def _line(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""


def _refused(what: str, place: str, why: str, **fields: str | int | bool | None) -> DomainRefused:
    module, _, attribute = place.partition(":")
    return DomainRefused(f"{what} {place!r}: {why}", **{**fields, "module": module[:255], "attribute": attribute[:255]})
