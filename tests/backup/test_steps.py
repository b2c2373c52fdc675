"""What is copied, named and deleted, and when, from seeds: whatever is interrupted, what the manifest names is there."""

from __future__ import annotations

import random

import pytest

from eventstore.backup.steps import BackupSteps, CopyObject, DeleteObject, ObjectState, ReplaceManifest


class Place:
    """A place for a backup, which does what the steps say until it is interrupted."""

    def __init__(self) -> None:
        self.objects, self.named = set[str](), set[str]()

    def run(self, wanted: list[str], until: int) -> bool:
        """Takes up to this many steps. Returns whether the backup is complete."""
        steps = BackupSteps(wanted, self.named, self.objects)
        for _ in range(until):
            steps.check_invariants()
            assert self.named <= self.objects
            match steps.next():
                case None:
                    return True
                case CopyObject(name):
                    assert name not in self.objects
                    self.objects.add(name)
                    steps.copied(name)
                case ReplaceManifest():
                    self.named = set(wanted)
                    steps.committed_manifest()
                case DeleteObject(name):
                    self.objects.remove(name)
                    steps.deleted(name)
        assert self.named <= self.objects
        return False


@pytest.mark.parametrize("seed", range(40))
def test_what_is_named_is_always_there_and_in_the_end_nothing_else(seed: int) -> None:
    rng, place = random.Random(seed), Place()
    names = [f"object-{number}" for number in range(12)]
    for _ in range(30):
        wanted = rng.sample(names, rng.randint(0, len(names)))
        place.run(wanted, rng.randint(0, 20))
    wanted = rng.sample(names, 6)
    assert place.run(wanted, 100)
    assert place.objects == place.named == set(wanted)


def test_an_object_that_an_interrupted_backup_has_copied_is_not_copied_again() -> None:
    steps = BackupSteps(["a", "b"], named=[], present=["a", "x"])
    assert steps.states == {"x": ObjectState.LEFT, "a": ObjectState.COPIED, "b": ObjectState.WANTED}
    assert steps.next() == CopyObject("b")


def test_a_backup_of_what_is_there_already_only_replaces_the_manifest() -> None:
    steps = BackupSteps(["a"], named=["a"], present=["a"])
    assert steps.next() == ReplaceManifest()
    steps.committed_manifest()
    assert steps.next() is None
