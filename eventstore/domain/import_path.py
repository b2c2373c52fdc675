"""Loads a domain or projections from `module:attribute`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from eventstore.domain.domain import Domain
from eventstore.domain.handler import line_of, text_of
from eventstore.domain.projections.projection import Projection
from eventstore.errors import DomainRefused
from eventstore.fields import shown

_EXAMPLE: Final = {"domain": "app", "projection": "Balances", "projections": "PROJECTIONS"}
_CANDIDATES_MAX: Final = 10


def load(place: str, folder: str | Path | None = None) -> Domain:
    """Imports and checks the domain at `module:attribute`. Searches `folder` first (default: the current folder).

    Raises:
        DomainRefused: the module cannot be imported, has no such attribute, or the domain fails its check.
    """
    found = _attribute("domain", place, folder)
    if not isinstance(found, Domain):
        raise _refused("domain", place, f"is {_kind_of(found)}, not an eventstore.domain.Domain{_candidates('domain', place)}")
    found.check()
    return found


def load_projection(place: str, folder: str | Path | None = None) -> Projection[Any]:
    """As `load`, for a projection: an instance, or a class that needs no arguments."""
    return _projection(place, _attribute("projection", place, folder))


def load_projections(place: str, folder: str | Path | None = None) -> list[Projection[Any]]:
    """Returns the projections of `module`: the instances that it has, and the classes with a `name` that it defines, which need
    no arguments; or those of the list at `module:attribute`. Raises as `load`; also if there is none.
    """
    if ":" in place:
        listed = _attribute("projections", place, folder)
        if not isinstance(listed, list | tuple):
            raise _refused("projections", place, f"is {_kind_of(listed)}, not a list of projections")
        found = list(listed)
    else:
        if not all(part.isidentifier() for part in place.split(".")):
            raise DomainRefused(
                f"projections {shown(place)} is not of the form module, or module:attribute{_suggestion('projections', place)}",
                place=place[:255],
            )
        module = _module("projections", place, place, Path(folder) if folder is not None else Path.cwd())
        found = [each for each in vars(module).values() if isinstance(each, Projection) or _is_defined(each, module)]
    if not found:
        raise _refused("projections", place, "has none: no instance, and no class that it defines")
    return [_projection(place, each) for each in dict.fromkeys(found)]  # two names may be of one


def _is_defined(found: object, module: ModuleType) -> bool:
    own = isinstance(found, type) and issubclass(found, Projection) and found.__module__ == module.__name__
    return own and hasattr(found, "name")  # without one, it is the base of others


def _projection(place: str, found: object) -> Projection[Any]:
    if isinstance(found, type) and issubclass(found, Projection):
        try:
            found = found()
        except TypeError as error:
            raise _refused(
                "projection", place, f"{_kind_of(found)} cannot be created without arguments: {error}; name an instance instead"
            ) from None
    if not isinstance(found, Projection):
        raise _refused(
            "projection",
            place,
            f"is {_kind_of(found)}, not an eventstore.domain.Projection{_candidates('projection', place)}",
        )
    found.check_states()
    return found


def _attribute(what: str, place: str, folder: str | Path | None) -> object:
    name, colon, attributes = place.partition(":")
    if not colon or not all(part.isidentifier() for part in [*name.split("."), *attributes.split(".")]):
        raise DomainRefused(
            f"{what} {shown(place)} is not of the form module:attribute{_suggestion(what, place)}", place=place[:255]
        )
    found: object = _module(what, name, place, Path(folder) if folder is not None else Path.cwd())
    for attribute in attributes.split("."):
        if not hasattr(found, attribute):
            raise _refused(what, place, f"{_kind_of(found)} has no attribute {attribute!r}{_candidates(what, place)}")
        found = getattr(found, attribute)
    return found


def _module(what: str, name: str, place: str, folder: Path) -> ModuleType:
    path = str(folder.resolve())
    if path not in sys.path:
        sys.path.insert(0, path)  # stays there: a module may import its neighbours later
        importlib.invalidate_caches()
    start = f"; start in the folder of {name}.py, or set PYTHONPATH to it"
    try:
        found = importlib.import_module(name)
    except DomainRefused as error:
        raise _refused(what, place, f"module {name!r}: {error.message}", **error.fields) from error
    except ModuleNotFoundError as error:
        if error.name == name:
            hint = _suggestion(what, place) or start
            raise _refused(what, place, f"module {name!r} was not found in {path} or on Python's path{hint}") from None
        raise _refused(what, place, f"module {name!r} imports {error.name!r}, which was not found; install it") from error
    except (Exception, SystemExit) as error:  # importing runs the author's code
        raise _refused(
            what, place, f"importing {name!r} raised {type(error).__name__}: {text_of(error)}{line_of(error)}"
        ) from error
    if found.__spec__ is not None and found.__spec__.origin is None and found.__spec__.submodule_search_locations:
        folders = ", ".join(found.__path__)
        raise _refused(what, place, f"module {name!r} is the folder {folders}, in which there is no __init__.py{start}")
    return found


def _suggestion(what: str, place: str) -> str:
    """Returns the correct form of a place that is a file name, or has no attribute."""
    name, _, attributes = place.partition(":")
    file = Path(name)
    module = name if "/" not in name and file.suffix != ".py" else file.stem
    if (module == name and attributes) or not module.replace(".", "_").isidentifier():
        return ""
    folder = f", in the folder {file.parent}" if file.parent != Path() else ""
    return f"; use {module}:{attributes or _EXAMPLE[what]}{folder}"


def _kind_of(found: object) -> str:
    if isinstance(found, ModuleType):
        return f"the module {found.__name__!r}"
    if isinstance(found, type):
        return f"the class {found.__qualname__!r}"
    return f"a value of type {type(found).__qualname__!r}"


def _candidates(what: str, place: str) -> str:
    """Lists the domains or projections that the module has."""
    kind = Domain if what == "domain" else Projection
    there = vars(sys.modules[place.partition(":")[0]]).items()
    names = [
        name for name, value in there if isinstance(value, kind) or (isinstance(value, type) and kind in value.__mro__[1:])
    ]
    return f"; the module has {', '.join(names[:_CANDIDATES_MAX])}" if names else f"; the module has no {what}"


def _refused(what: str, place: str, why: str, **fields: str | int | bool | None) -> DomainRefused:
    module, _, attribute = place.partition(":")
    return DomainRefused(f"{what} {place!r}: {why}", **{**fields, "module": module[:255], "attribute": attribute[:255]})
