"""`eventstore-spark verify` finds what was planted, and names file and byte offset; of a sound store it says nothing."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from crc32c import crc32c
from pyspark.sql import SparkSession

from eventstore.chunks import record
from eventstore.chunks.header import RECORDS_FROM
from eventstore.model import ANY, NewEvent
from eventstore.records.commit import FRAMING, HEADER, HEADER_BYTES, joint_place_of
from pyspark_eventstore.jobs.verify import FileFault, told, verify_shards
from pyspark_eventstore.main import run
from tests.processes import run_to_end
from tests.spark.made import MadeStore, three_states
from tests.spark.settings import settings_folder
from tests.store.stepped import together

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("verify") / "shard"
    three_states(path, count=300).close()
    return path


@pytest.fixture
def data_folder(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "shard"))


def records(path: Path) -> list[tuple[int, int, int]]:
    """(byte offset, length, sequence) of every record of a file."""
    raw = memoryview(path.read_bytes())
    found = record.walk(raw[RECORDS_FROM:], RECORDS_FROM, record.UNORDERED, FRAMING)
    ends = [*found.offsets[1:], found.end]
    return [(start, end - start, first) for start, end, first in zip(found.offsets, ends, found.sequences, strict=True)]


def forge(path: Path, offset: int, **changes: int | bytes) -> None:
    """Changes a record and gives it a checksum that is right again: a fault that only its meaning shows."""
    raw = bytearray(path.read_bytes())
    fields = list(HEADER.struct.unpack_from(raw, offset))
    for name, value in changes.items():
        if name == "command":
            assert isinstance(value, bytes)
            start = offset + HEADER_BYTES + 2 + fields[11] + 2
            assert len(value) == fields[12]
            raw[start : start + len(value)] = value
        else:
            fields[HEADER.names.index(name)] = value
    HEADER.struct.pack_into(raw, offset, *fields)
    crc = crc32c(bytes(raw[offset + record.CRC_FROM : offset + fields[4]]))
    raw[offset + 2 : offset + 6] = crc.to_bytes(4, "little")
    path.write_bytes(raw)


def forge_bytes(path: Path, offset: int, old: bytes, new: bytes) -> None:
    """The same for bytes of a record, which must be there once."""
    raw = path.read_bytes()
    end = offset + HEADER.struct.unpack_from(raw, offset)[4]
    assert (len(old), raw[offset:end].count(old)) == (len(new), 1)
    path.write_bytes(raw[:offset] + raw[offset:end].replace(old, new) + raw[end:])
    forge(path, offset)


def found_in(spark: SparkSession, data_folder: Path) -> list[FileFault]:
    return verify_shards(spark, [str(data_folder)])[1]


def event_file(data_folder: Path, number: int) -> Path:
    return data_folder / "events" / f"{number:010d}.events"


def test_a_sound_store_has_no_faults(spark: SparkSession, sound: Path) -> None:
    events, found = verify_shards(spark, [str(sound)])
    assert found == []
    assert events == 600


def test_a_flipped_bit(spark: SparkSession, data_folder: Path) -> None:
    path = event_file(data_folder, 1)
    offset = records(path)[3][0]
    raw = bytearray(path.read_bytes())
    raw[offset + 60] ^= 1
    path.write_bytes(raw)
    found = found_in(spark, data_folder)
    assert any(each.file == path.name and each.offset == offset and "the checksum of the record" in each.what for each in found)
    said = told(found).splitlines()
    assert said[0].startswith(f"  {path}: at byte {offset}: the checksum of the record does not match")  # the cause first
    assert said[1:3] == ["1 fault", "gaps, because damaged events were not read; check again after the repair:"]
    assert len(said) == len(found) + 2 > 3


def test_a_version_that_is_missing(spark: SparkSession, data_folder: Path) -> None:
    path = event_file(data_folder, 1)
    offset = records(path)[3][0]
    forge(path, offset, first_version=9_999)
    found = found_in(spark, data_folder)
    assert any(each.file == path.name and each.offset == offset and "version 9999 of aggregate" in each.what for each in found)


def test_a_sequence_that_is_missing_and_one_that_is_there_twice(spark: SparkSession, data_folder: Path) -> None:
    path = event_file(data_folder, 1)
    offset, _, sequence = records(path)[3]
    forge(path, offset, sequence=sequence + 1)
    found = found_in(spark, data_folder)
    assert any(each.file == path.name and f"sequence {sequence + 1} follows" in each.what for each in found)


def test_a_command_id_that_was_used_twice(spark: SparkSession, data_folder: Path) -> None:
    path = event_file(data_folder, 1)
    raw = path.read_bytes()
    places: dict[tuple[bytes, int], list[tuple[int, bytes]]] = {}
    for offset, _, _ in records(path):
        *_, id_length, command_length, _ = HEADER.struct.unpack_from(raw, offset)
        start = offset + HEADER_BYTES + 2
        command = raw[start + id_length + 2 : start + id_length + 2 + command_length]
        places.setdefault((raw[start : start + id_length], command_length), []).append((offset, command))
    (aggregate, _), [(_, earlier), (later, _), *_] = next(item for item in places.items() if len(item[1]) > 1)
    forge(path, later, command=earlier)
    found = found_in(spark, data_folder)
    what = f"command id {earlier.decode()} of aggregate {aggregate.decode()} was used before"
    assert FileFault(str(data_folder), path.name, later, what, "command") in found


def test_a_record_that_was_taken_out(spark: SparkSession, data_folder: Path) -> None:
    """The records that are left are good; header, footer and the sequences know better."""
    path = event_file(data_folder, 1)
    raw, places = path.read_bytes(), records(path)
    offset, length, _ = places[3]
    end = places[-1][0] + places[-1][1]
    path.write_bytes(raw[:offset] + raw[offset + length : end] + bytes(length) + raw[end:])
    found = found_in(spark, data_folder)
    assert any(each.file == path.name and "sequence" in each.what for each in found)
    assert any(each.file == path.name and each.offset == end - length for each in found)


@pytest.mark.parametrize("state", ["sorted", "ongoing"])
def test_an_envelope_of_tags_that_is_malformed(spark: SparkSession, tmp_path: Path, state: str) -> None:
    """Records with tags are as sound as others; in each of three the envelope is damaged, under a checksum that is right."""
    store = MadeStore(tmp_path / "shard")
    for number in range(64):
        tagged = NewEvent("T", bytes(300), b"meta" if number % 2 else None, ["course:c1", f"student:s{number:02d}"])
        store.append(f"acc-{number % 3}", tagged, NewEvent("T", b""), command_id=f"c-{number:02d}")
    store.sort()
    number = store.states().index(state) + 1
    store.close()
    assert verify_shards(spark, [str(store.path)]) == (128, [])
    path = event_file(store.path, number)
    places = records(path)
    assert len(places) >= 3
    envelope = b"\x02\x09course:c1\x0bstudent:s"
    changes = [
        (envelope, b"\x02\x09course:c1\x7fstudent:s", "its tags end at byte"),
        (envelope, b"\x02\x09zourse:c1\x0bstudent:s", "its tags do not ascend"),
        (envelope, b"\x03\x09course:c1\x0bstudent:s", "the record is not a commit"),
    ]
    for (offset, _, _), (old, new, _) in zip(places, changes, strict=False):
        forge_bytes(path, offset, old, new)
    damaged = [each for each in found_in(spark, store.path) if each.kind == "damage"]
    assert [(each.file, each.offset) for each in damaged] == [(path.name, offset) for offset, _, _ in places[:3]]
    for each, (_, _, what) in zip(damaged, changes, strict=True):
        assert "the checksum matches, but the record is not a commit: " in each.what
        assert what in each.what


BOTH = """
import sys
from pyspark_eventstore.main import run

data_folder, sound, out = sys.argv[1:]
local = ["--master", "local[1]"]
code = run(["verify", data_folder, *local])
failed = run(["rebuild", sound, "--projection", "tests.spark.balances:RaisesByAggregate", "--to", "parquet:" + out, *local])
print("codes", code, failed)
"""


@pytest.mark.long
@pytest.mark.heavy
def test_the_command_prints_what_it_found_and_ends_with_1(
    data_folder: Path, sound: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """And of an error in a worker it prints one line. Both in one process, which starts Java once."""
    path = event_file(data_folder, 1)
    offset = records(path)[3][0]
    forge(path, offset, first_version=9_999)
    environment = {**os.environ, "SPARK_CONF_DIR": str(settings_folder(tmp_path_factory.mktemp("spark")))}
    command = [sys.executable, "-c", BOTH, str(data_folder), str(sound), str(tmp_path / "out")]
    done = run_to_end(command, ROOT, environment)
    assert done.returncode == 0, done.stderr
    assert f"{path}: at byte {offset}: version 9999 of aggregate" in done.stdout
    assert done.stdout.splitlines()[-1] == "codes 1 1"
    said = r"error: projection 'raises_by_aggregate' failed at sequence \d+, aggregate 'acc-003', version 5, type '.*': .*"
    assert re.fullmatch(said, done.stderr.splitlines()[-1]), done.stderr


def test_a_target_and_a_projection_that_are_none_are_told_before_spark_starts(
    sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    rebuild = ["rebuild", str(sound), "--projection"]
    assert run([*rebuild, "tests.spark.balances:Balances", "--to", "csv:out"]) == 2
    assert capsys.readouterr().err.startswith("error: --to is 'csv:out', expected parquet:FOLDER or postgresql://")
    assert run([*rebuild, "tests.spark.balances:Balance", "--to", "parquet:out"]) == 2
    assert "Balance" in capsys.readouterr().err
    assert run([*rebuild, "tests.spark.balances:Balances", "--to", "postgresql://nobody@127.0.0.1:1/x"]) == 1
    assert "projection 'balances' cannot use PostgreSQL: connection failed" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["verify", "export --to parquet:out", "rebuild --projection x:Y --to parquet:out"])
def test_a_path_that_is_not_there_is_told_before_spark_starts(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))  # where no Java is: it is not looked for
    name, *options = command.split()
    assert run([name, str(tmp_path / "nothing"), *options]) == 1
    told = f"error: {tmp_path}/nothing: does not exist; name the data folder of a store\n"
    assert capsys.readouterr().err == told


def test_joint_commits_and_tags_are_sound_sorted_or_not_and_a_gap_in_one_is_found(spark: SparkSession, tmp_path: Path) -> None:
    store, events = MadeStore(tmp_path / "shard"), 0
    for number in range(60):
        tagged = NewEvent("T", bytes(300), b"meta" if number % 2 else None, ["course:c1", f"student:s{number}"])
        writes = [(f"acc-{place}", ANY, [tagged] * (1 + place)) for place in range(1 + number % 3)]
        store.append_all([together(f"c-{number}", *writes)])
        events += sum(len(each) for _, _, each in writes)
        if number == 40:
            store.sort()
    states = store.states()
    assert {"sorted", "ongoing"} <= set(states)
    store.close()
    assert verify_shards(spark, [str(store.path)]) == (events, [])
    path = event_file(store.path, len(states))
    whole = path.read_bytes()
    offset, length, _ = next(each for each in records(path) if joint_place_of(whole, each[0]) is not None)
    raw = bytearray(whole)
    raw[offset + length // 2] ^= 1
    path.write_bytes(raw)
    damaged = [each for each in found_in(spark, store.path) if each.kind == "damage"]
    assert [(each.file, each.offset) for each in damaged] == [(path.name, offset)]
