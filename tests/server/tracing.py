"""Makes the nth system call of a kind fail in a real process, with strace."""

from __future__ import annotations

import shutil
import subprocess

import pytest


def _can_trace() -> bool:
    strace = shutil.which("strace")
    if strace is None:
        return False
    probe = [strace, "-f", "--seccomp-bpf", "-qq", "-o", "/dev/null", "-e", "inject=fdatasync:delay_exit=1", "true"]
    return subprocess.run(probe, check=False, capture_output=True, timeout=30).returncode == 0


needs_strace = pytest.mark.skipif(not _can_trace(), reason="strace is not installed, or not allowed to trace here")


def injecting(*faults: str, path: str | None = None) -> tuple[str, ...]:
    """Returns the prefix of a command that makes its calls fail, such as `fdatasync:error=EIO:when=3`; only those on `path`."""
    # With a filter in the kernel a process stops at these calls alone, and is nearly as fast as without a tracer. But a
    # filtered call fails once the tracer is gone, and strace does not send signals there.
    filtered = ("--seccomp-bpf",) if all("error=" in fault for fault in faults) else ()
    calls = ",".join(fault.partition(":")[0] for fault in faults)
    options = [option for fault in faults for option in ("-e", f"inject={fault}")]
    only = ("-P", path) if path is not None else ()
    return ("strace", "-D", "-f", *filtered, "-qq", "-o", "/dev/null", *only, "-e", f"trace={calls}", *options)
