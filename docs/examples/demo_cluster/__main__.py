"""`make demo-cluster`: three nodes and an etcd on this machine; one node is killed while a client appends, and comes back.

Everything that is shown is also checked: the exit code is 0 only if all of it is right. The folders are removed. Run it as
`python docs/examples/demo_cluster`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

import eventstore as es

sys.path[0] = str(Path(__file__).parents[1])  # the folder of this package, and of the stage of the other demo

from demo.stage import DemoFailed, Stage
from demo_cluster.processes import etcd_program
from demo_cluster.story import ClusterStory


def main() -> int:
    """Returns exit code 0 if everything was right."""
    console, started = Console(), time.perf_counter()
    if etcd_program() is None:
        console.print(
            "✗ etcd is not installed, and PyPI has none for this machine: apt-get install etcd-server",
            style="bold red",
            markup=False,
        )
        return 1
    scratch = Path(tempfile.mkdtemp(prefix="eventstore-demo-cluster-"))
    try:
        ClusterStory(scratch, Stage(console)).run()
    except KeyboardInterrupt:
        return 130
    except (DemoFailed, es.EventStoreError, OSError, subprocess.SubprocessError) as error:
        console.print(f"✗ {error}", style="bold red", markup=False)
        return 1
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    console.print(f"Done in {time.perf_counter() - started:.1f} s; the scratch folders are removed.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
