"""`make demo`: a library lends books, a bank moves money, a shop bills its orders, on real servers with scratch folders.

Everything that is shown is also checked: the exit code is 0 only if all of it is right. The folders are removed. Run it as
`python docs/examples/demo`.
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

sys.path[0] = str(Path(__file__).parents[1])  # the folder of this package, and of the bank that the server imports

from demo.bank import BankStory
from demo.library import LibraryStory
from demo.orders import OrdersStory
from demo.stage import DemoFailed, Stage


@contextmanager
def _scratch_folder(name: str) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix=f"eventstore-demo-{name}-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def main() -> int:
    """Returns exit code 0 if everything was right."""
    console, started = Console(), time.perf_counter()
    try:
        for story in (LibraryStory, BankStory, OrdersStory):
            with _scratch_folder(story.__name__.removesuffix("Story").lower()) as scratch:
                story(scratch, Stage(console)).run()
    except KeyboardInterrupt:
        return 130
    except (DemoFailed, es.EventStoreError, OSError, subprocess.SubprocessError) as error:
        console.print(f"✗ {error}", style="bold red", markup=False)
        return 1
    console.print(f"Done in {time.perf_counter() - started:.1f} s; the scratch folders are removed.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
