"""A command whose etcd does not answer says what it waits for meanwhile, and at once what it knows without etcd."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.logged_process import EVENTSTORE
from tests.ports import free_port


@pytest.mark.parametrize("words", [("split", "0"), ("plans",)])
def test_a_command_says_what_it_waits_for_before_it_gives_up(words: tuple[str, ...]) -> None:
    address = f"127.0.0.1:{free_port()}"
    command = [*EVENTSTORE, "cluster", *words, "--etcd", f"http://{address}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        first = process.stderr.readline()
        still_waits = process.poll() is None
        process.kill()
    assert first.startswith(f"waiting for etcd: etcd does not answer: http://{address}: ")
    assert still_waits


def test_a_folder_that_cannot_be_adopted_as_it_does_not_exist_is_refused_without_etcd(tmp_path: Path) -> None:
    command = [*EVENTSTORE, "cluster", "adopt", str(tmp_path / "none"), "--etcd", f"http://127.0.0.1:{free_port()}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert done.stderr.startswith(f"error: {tmp_path / 'none'}: is not a folder; ")
