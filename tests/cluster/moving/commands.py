"""Runs `eventstore cluster …` as an operator does."""

from __future__ import annotations

import subprocess

from tests.cluster.etcd.real_etcd import Etcd
from tests.logged_process import EVENTSTORE

_TIMEOUT_S = 120


def run_cluster(etcd: Etcd, cluster: str, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [*EVENTSTORE, "cluster", *words, "--etcd", etcd.url, "--cluster", cluster]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    assert done.returncode == code, done.stderr
    return done
