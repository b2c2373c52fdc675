"""The files of keys: what was handed out is never lost, what was destroyed never comes back, wherever the process dies."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from eventstore.chunks.documents import replace_without_copy, write_file
from eventstore.chunks.files import Files, OsFiles
from eventstore.errors import Corrupt, FolderRefused
from eventstore.subjects import key_buckets
from eventstore.subjects.key_buckets import KeyBuckets, bucket_of, read_bucket
from eventstore.subjects.master_keys import MasterKeys, read_master_keys
from tests.simulated_disk import CRASH_MODES, CrashMode, SimulatedDisk
from tests.subjects.conftest import master_key

pytest.importorskip("cryptography")
FOLDER = Path("/data")
MASTER = MasterKeys([bytes(range(32))])


def same_bucket(count: int) -> list[str]:
    """Returns subjects that share a file."""
    wanted = bucket_of("s-0")
    return [name for name in map("s-{}".format, range(50_000)) if bucket_of(name) == wanted][:count]


SUBJECTS = [*same_bucket(3), "other-1", "other-2"]


class Promises:
    """What a store has said, at some moment of its life."""

    def __init__(self, keys: dict[str, bytes], erased: set[str], erasing: set[str]) -> None:
        self.keys, self.erased, self.erasing = dict(keys), set(erased), set(erasing)

    def check(self, disk: SimulatedDisk) -> dict[str, bytes]:
        """Returns the keys that a start hands out."""
        buckets = KeyBuckets(disk, FOLDER, MASTER)
        buckets.begin()
        for subject, secret in self.keys.items():
            (found,) = buckets.find([subject], create=False)
            if subject in self.erased:
                assert (found.secret, found.erased) == (None, True), subject
            elif subject not in self.erasing or not found.erased:
                assert found.secret == secret, subject
        handed_out = buckets.find(SUBJECTS, create=False)
        return {each.subject: each.secret for each in handed_out if each.secret is not None}


@pytest.mark.parametrize("mode", CRASH_MODES)
@pytest.mark.parametrize("seed", range(4))
def test_a_crash_at_any_operation_loses_no_key_that_was_handed_out_and_keeps_none_that_was_destroyed(
    mode: CrashMode, seed: int
) -> None:
    check_crashes(mode, seed)


def check_crashes(mode: CrashMode, seed: int) -> None:
    """Makes and destroys keys; raises AssertionError if a crash before any operation breaks a promise."""
    disk = SimulatedDisk(seed)
    disk.make_folder(FOLDER)
    now, crashes = Promises({}, set(), set()), list[tuple[SimulatedDisk, Promises]]()
    disk.at_each_operation(lambda each: crashes.append((each.crash(mode), Promises(now.keys, now.erased, now.erasing))))
    buckets = KeyBuckets(disk, FOLDER, MASTER)
    for place, subject in enumerate(SUBJECTS):
        now.keys |= {each.subject: each.secret or b"" for each in buckets.find([subject], create=True)}
        if place % 2:
            now.erasing.add(subject)
            assert buckets.destroy({subject: 7}) == 1
            now.erased.add(subject)
    assert len(crashes) > 20
    for crashed, promises in crashes:
        found = promises.check(crashed)
        promises.keys |= found
        promises.check(crashed.crash("lost"))  # what a start has handed out is durable, too


def check_all_crashes(modes: Iterable[CrashMode]) -> None:
    for mode in modes:
        for seed in range(4):
            check_crashes(mode, seed)


def planted_rename_without_a_sync(files: Files, path: Path, raw: bytes) -> None:
    temporary = path.with_name(path.name + ".tmp")
    write_file(files, temporary, raw)
    files.rename(temporary, path)


def planted_copy_of_what_was_there(files: Files, path: Path, raw: bytes) -> None:
    if not files.exists(path):
        write_file(files, path, raw)  # with its last name at once
        files.sync_folder(path.parent)
    else:
        replace_without_copy(files, path, raw)


@pytest.mark.parametrize("planted", [planted_rename_without_a_sync, planted_copy_of_what_was_there])
def test_a_mistake_in_how_buckets_are_replaced_is_found(
    planted: Callable[[Files, Path, bytes], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_buckets, "replace_without_copy", planted)
    with pytest.raises((AssertionError, Corrupt)):
        check_all_crashes(CRASH_MODES)


def test_a_start_that_does_not_make_durable_what_it_finds_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KeyBuckets, "begin", lambda _: None)
    with pytest.raises(AssertionError):
        check_all_crashes(["kept"])


def test_a_bucket_whose_folder_could_not_be_synced_is_written_again_before_its_key_is_handed_out() -> None:
    disk = SimulatedDisk(0)
    disk.make_folder(FOLDER)
    buckets = KeyBuckets(disk, FOLDER, MASTER)
    buckets.find(["s-0"], create=True)
    disk.fail("sync_folder", 1, errno.EIO)
    other = same_bucket(2)[1]
    with pytest.raises(OSError):
        buckets.find([other], create=True)
    assert buckets.cached([other]) is None
    (found,) = buckets.find([other], create=True)
    again = KeyBuckets(disk.crash("lost"), FOLDER, MASTER)
    assert [each.secret for each in again.find([other], create=False)] == [found.secret]


def test_no_file_keeps_a_key_that_was_destroyed(tmp_path: Path) -> None:
    buckets = KeyBuckets(OsFiles(), tmp_path, MASTER)
    first, second = same_bucket(2)
    buckets.find([first, second], create=True)
    wrapped = read_bucket(OsFiles(), buckets.path(bucket_of(first))).keys[first][0]
    assert buckets.destroy({first: 7}) == 1
    assert buckets.destroy({first: 8}) == 0
    assert [path.name for path in buckets.folder.iterdir()] == [f"{bucket_of(first):03}.json"]
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and wrapped in path.read_text()]
    assert buckets.find([second], create=False)[0].secret
    (found,) = buckets.find([first], create=True)
    assert (found.secret, found.erased) == (None, True)  # it gets no other


def test_a_new_master_key_takes_over_and_the_old_one_may_go(tmp_path: Path) -> None:
    path = master_key(tmp_path)
    (before,) = KeyBuckets(OsFiles(), tmp_path, read_master_keys(path)).find(["s-0"], create=True)
    master_key(tmp_path)  # in front of the old one
    assert KeyBuckets(OsFiles(), tmp_path, read_master_keys(path)).wrap_again() == 1
    assert KeyBuckets(OsFiles(), tmp_path, read_master_keys(path)).wrap_again() == 0
    path.write_text(path.read_text().splitlines()[0])
    after = KeyBuckets(OsFiles(), tmp_path, read_master_keys(path))
    after.check()
    assert after.find(["s-0"], create=False) == [before]


def test_the_master_key_of_another_store_is_refused_by_name(tmp_path: Path) -> None:
    KeyBuckets(OsFiles(), tmp_path, MASTER).find(["s-0"], create=True)
    other = KeyBuckets(OsFiles(), tmp_path, MasterKeys([os.urandom(32)]))
    with pytest.raises(Corrupt, match="which is not in the file of master keys"):
        other.check()


def test_a_key_that_was_moved_to_another_subject_is_refused(tmp_path: Path) -> None:
    buckets = KeyBuckets(OsFiles(), tmp_path, MASTER)
    first, second = same_bucket(2)
    buckets.find([first], create=True)
    path = buckets.path(bucket_of(first))
    path.write_text(path.read_text().replace(f'"{first}"', f'"{second}"'))
    with pytest.raises(Corrupt, match="cannot be decrypted"):
        KeyBuckets(OsFiles(), tmp_path, MASTER).find([second], create=False)


@pytest.mark.parametrize(
    ("text", "mode", "what"),
    [
        ("", 0o600, "it has no key"),
        ("# none\n", 0o600, "it has no key"),
        ("abc\n", 0o600, "line 1 is not a key"),
        ("00" * 32, 0o604, "everyone may read"),
    ],
)
def test_a_file_of_master_keys_that_is_none_is_refused(tmp_path: Path, text: str, mode: int, what: str) -> None:
    path = tmp_path / "master.key"
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises(FolderRefused, match=what):
        read_master_keys(path)


@pytest.mark.parametrize("text", ["{}", '{"format": 2}', '{"format": 1, "keys": {"a": 1}, "erased": {}}', "x"])
def test_a_damaged_bucket_is_refused_and_not_taken_for_an_empty_one(tmp_path: Path, text: str) -> None:
    buckets = KeyBuckets(OsFiles(), tmp_path, MASTER)
    buckets.find(["s-0"], create=True)
    buckets.path(bucket_of("s-0")).write_text(text)
    with pytest.raises(Corrupt):
        KeyBuckets(OsFiles(), tmp_path, MASTER).find(["s-0"], create=True)
