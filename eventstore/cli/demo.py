"""`make demo`: a library lends books, a bank moves money, a shop bills its orders. Real servers on scratch folders.

Everything that is shown is also checked: the exit code is 0 only if all of it is as it should be. The folders are removed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

import eventstore as es
from eventstore.cli.demonstration.bank import BankStory
from eventstore.cli.demonstration.library import LibraryStory
from eventstore.cli.demonstration.orders import OrdersStory
from eventstore.cli.demonstration.stage import DemoFailed, Stage


@contextmanager
def _scratch_folder(name: str) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix=f"eventstore-demo-{name}-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def main() -> int:
    """Exit code 0: everything was as it should be."""
    console, started = Console(), time.perf_counter()
    try:
        with _scratch_folder("library") as scratch:
            LibraryStory(scratch, Stage(console)).run()
        with _scratch_folder("bank") as scratch:
            BankStory(scratch, Stage(console)).run()
        with _scratch_folder("orders") as scratch:
            OrdersStory(scratch, Stage(console)).run()
    except KeyboardInterrupt:
        return 130
    except (DemoFailed, es.EventStoreError, OSError, subprocess.SubprocessError) as error:
        console.print(f"✗ {error}", style="bold red", markup=False)
        return 1
    console.print(f"Done in {time.perf_counter() - started:.1f} s; the scratch folders are removed.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
