"""Memory counts as used up to the limit that applies to the process, of the machine or of its control group."""

from __future__ import annotations

from pathlib import Path

import pytest

from eventstore.broker.log.memory_pressure import memory_used

GIB = 1 << 30
UNLIMITED_V1 = "9223372036854771712"


def machine(root: Path, groups: str, used: float = 0.1) -> Path:
    total = 64 * GIB // 1024
    write(
        root / "proc/meminfo", f"MemTotal: {total} kB\nMemFree: 5 kB\nMemAvailable: {round(total * (1 - used))} kB\nHuge: 0\n"
    )
    write(root / "proc/self/cgroup", groups)
    return root


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def group_2(folder: Path, limit: str, current: int, file: int) -> None:
    write(folder / "memory.max", limit + "\n")
    write(folder / "memory.current", f"{current}\n")
    write(folder / "memory.stat", f"anon {current - file}\nfile {file}\ninactive_file {file // 2}\nactive_file {file // 2}\n")


def group_1(folder: Path, limit: str, usage: int, file: int) -> None:
    write(folder / "memory.limit_in_bytes", limit + "\n")
    write(folder / "memory.usage_in_bytes", f"{usage}\n")
    write(folder / "memory.stat", f"cache {file}\ntotal_inactive_file {file // 2}\ntotal_active_file {file // 2}\n")


def test_a_limit_of_the_container_counts_not_only_the_machine(tmp_path: Path) -> None:
    root = machine(tmp_path, "0::/\n")
    group_2(root / "sys/fs/cgroup", str(2 * GIB), 2 * GIB - 4096, GIB // 2)
    assert memory_used(root) == pytest.approx(0.75, abs=0.01), "what the page cache holds is easily freed"


def test_a_limit_of_a_service_counts_and_so_does_that_of_the_slice_it_is_in(tmp_path: Path) -> None:
    root = machine(tmp_path, "0::/system.slice/eventstore.service\n")
    group_2(root / "sys/fs/cgroup/system.slice/eventstore.service", str(4 * GIB), GIB, 0)
    assert memory_used(root) == pytest.approx(0.25)
    group_2(root / "sys/fs/cgroup/system.slice", str(4 * GIB), 3 * GIB, 0)
    assert memory_used(root) == pytest.approx(0.75)


@pytest.mark.parametrize("visible", [True, False], ids=["service", "container"])
def test_limits_of_version_1_count(visible: bool, tmp_path: Path) -> None:
    root = machine(tmp_path, "9:name=systemd:/\n4:cpu,memory:/docker/0123\n0::/\n")
    group_1(root / "sys/fs/cgroup/memory" / ("docker/0123" if visible else ""), str(2 * GIB), GIB + GIB // 2, GIB // 2)
    assert memory_used(root) == pytest.approx(0.5)


@pytest.mark.parametrize("limit", ["max", UNLIMITED_V1, "", "nonsense", "0", "-1"])
def test_without_a_limit_the_machine_counts(limit: str, tmp_path: Path) -> None:
    root = machine(tmp_path, "4:memory:/a\n0::/a\n", used=0.3)
    group_2(root / "sys/fs/cgroup/a", limit, GIB, 0)
    group_1(root / "sys/fs/cgroup/memory/a", limit, GIB, 0)
    assert memory_used(root) == pytest.approx(0.3, abs=0.001)


def test_the_fuller_of_the_two_counts(tmp_path: Path) -> None:
    root = machine(tmp_path, "0::/\n", used=0.9)
    group_2(root / "sys/fs/cgroup", str(2 * GIB), GIB, 0)
    assert memory_used(root) == pytest.approx(0.9, abs=0.001)


def test_a_system_that_says_nothing_counts_as_empty(tmp_path: Path) -> None:
    assert memory_used(tmp_path) == 0.0
    write(tmp_path / "proc/meminfo", "MemTotal: 0 kB\nMemAvailable: 0 kB\n")
    write(tmp_path / "proc/self/cgroup", "\n:\n0::/../../x\n4:memory\n\xff")
    assert memory_used(tmp_path) == 0.0
