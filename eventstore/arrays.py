"""numpy, imported by the first use of one of its names: 10 MB and 0.1 s that a store without older files never needs.

A module imports `np` from here and uses it as numpy itself; at import time it asks it for nothing. `npt` is for annotations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    from importlib import import_module

    class _ImportedOnUse:
        """A module that is imported once one of its names is asked for. Each name is kept here, so it is asked for once."""

        def __init__(self, module):
            self._module = module

        def __getattr__(self, name):
            value = getattr(import_module(self._module), name)
            setattr(self, name, value)
            return value

    np, npt = _ImportedOnUse("numpy"), _ImportedOnUse("numpy.typing")

__all__ = ["np", "npt"]
