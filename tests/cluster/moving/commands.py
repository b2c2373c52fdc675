"""Runs `eventstore cluster …` as an operator does."""

from __future__ import annotations

import subprocess

from tests.cli.processes import run
from tests.cluster.etcd.real_etcd import Etcd


def run_cluster(etcd: Etcd, cluster: str, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = run("cluster", *words, "--etcd", etcd.url, "--cluster", cluster)
    assert done.returncode == code, done.stderr
    return done
