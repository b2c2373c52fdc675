"""Breaks a cluster of real processes, and judges what its clients saw: `python -m tests.cluster.nemesis --seconds 600`."""
