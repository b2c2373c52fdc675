"""The extras of this package: libraries that only some uses need. Says how those of one are installed."""

from __future__ import annotations

import shlex
from typing import Final

PACKAGE: Final = "eventstore-trio"


def advice(extra: str) -> str:
    """Returns what to do about a missing library, as the end of a sentence.

    It names the libraries as the installed package declares them, and not the package: so it is right for who has a clone, a
    wheel or neither at hand.
    """
    return f"install the extra {extra}: pip install {' '.join(shlex.quote(each) for each in _libraries(extra))}"


def _libraries(extra: str) -> list[str]:
    from importlib.metadata import PackageNotFoundError, requires  # here: who has the libraries need not load it

    try:
        declared = requires(PACKAGE) or []
    except PackageNotFoundError:  # it was copied, and not installed
        declared = []
    parts = (each.partition(";") for each in declared)
    found = [name.strip() for name, _, marker in parts if marker.strip().replace('"', "'") == f"extra == '{extra}'"]
    return found or [f"{PACKAGE}[{extra}]"]
