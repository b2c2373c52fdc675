"""CRC-32C, straight from the C extension of the package `crc32c`.

The package itself asks for its own version when it is imported. For that it loads `importlib.metadata`, `email` and
`argparse`: 2 MB and 27 ms of every process, however small.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crc32c import crc32c
else:
    from importlib import import_module
    from importlib.machinery import PathFinder
    from importlib.util import find_spec, module_from_spec

    def _extension():
        package = find_spec("crc32c")
        spec = package and PathFinder.find_spec("crc32c._crc32c", package.submodule_search_locations)
        if not spec:  # another release may be built in another way
            return import_module("crc32c")
        extension = module_from_spec(spec)
        spec.loader.exec_module(extension)
        return extension

    crc32c = _extension().crc32c

__all__ = ["crc32c"]
