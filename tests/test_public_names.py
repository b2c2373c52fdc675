"""The names of the package: all of them can be seen and imported, and importing the package alone loads little."""

from __future__ import annotations

import subprocess
import sys


def printed(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout


def test_dir_shows_every_public_name_before_it_is_used() -> None:
    assert printed("import eventstore; print(set(eventstore.__all__) - set(dir(eventstore)))") == "set()\n"


def test_a_star_import_imports_every_public_name() -> None:
    program = "from eventstore import *; import eventstore; print(set(eventstore.__all__) - set(globals()))"
    assert printed(program) == "set()\n"


def test_importing_the_package_loads_no_event_loop_and_no_numpy() -> None:
    assert printed("import eventstore, sys; print({'trio', 'anyio', 'numpy', 'lmdb'} & sys.modules.keys())") == "set()\n"
