"""What is wrong is said in words that name it, and say what to do."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from eventstore.chunks.files import OsFiles
from eventstore.errors import Corrupt, FolderRefused, InvalidArgument
from eventstore.extras import advice
from eventstore.store.sorted.event_index import open_index
from pyspark_eventstore.spark_session import check_java
from tests.spark.loading import load, reader_of
from tests.spark.made import MadeStore, three_states
from tests.spark.source.test_stream import Sink, follow
from tests.waiting import DEADLINE_SECONDS

NOWHERE = "00000000-0000-4000-8000-000000000000"


def flip(path: Path, offset: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[offset] ^= 0x10
    path.write_bytes(raw)


def complaint(spark: SparkSession, *paths: Path | str, schema: str | None = None, **options: object) -> str:
    with pytest.raises(PySparkException) as caught:
        load(spark, *paths, schema=schema, **options).collect()
    return str(caught.value)


@pytest.fixture
def data_folder(tmp_path: Path) -> Path:
    three_states(tmp_path / "shard").close()
    return tmp_path / "shard"


def test_the_command_without_spark_says_what_brings_it(data_folder: Path) -> None:
    """Also importing the package needs none of it."""
    script = f"""
import sys
sys.modules.update(dict.fromkeys(["pyspark", "pyarrow", "pandas"]))  # to be found nowhere
from pyspark_eventstore.main import run
sys.exit(run(["verify", {str(data_folder)!r}]))
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=DEADLINE_SECONDS)
    told = f"error: pyspark: is not installed; {advice('spark')}\n"
    assert (result.returncode, result.stderr) == (1, told)


def test_a_path_that_is_not_there(spark: SparkSession, tmp_path: Path) -> None:
    assert f"{tmp_path}/nothing: does not exist; name the data folder of a store" in complaint(spark, tmp_path / "nothing")
    assert "shard-*: nothing matches; name the data folders of stores" in complaint(spark, tmp_path / "shard-*")


def test_an_empty_folder_and_a_file(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    assert "there is no store here (store.json is missing)" in complaint(spark, tmp_path / "empty")
    assert "is a file, not a folder" in complaint(spark, tmp_path / "file")
    assert "none of its 2 matches holds a store" in complaint(spark, tmp_path / "*")


def test_a_file_system_that_is_not_mounted(spark: SparkSession) -> None:
    told = complaint(spark, "hdfs://cluster/data/shard-0")
    assert "event files are read as local files, not through hdfs:; mount the folder on every worker" in told


def test_a_folder_and_a_file_of_a_newer_format(spark: SparkSession, data_folder: Path) -> None:
    path = data_folder / "events" / "0000000001.events"
    raw = bytearray(path.read_bytes())
    raw[8] = 3
    path.write_bytes(raw)
    assert re.search(r"0000000001\.events: format version 3; this program reads versions 1 to 2", complaint(spark, data_folder))
    document = json.loads((data_folder / "store.json").read_text())
    (data_folder / "store.json").write_text(json.dumps({**document, "format": 3}))
    assert "store.json: format 3; this program knows formats 1 to 2. Use a newer one" in complaint(spark, data_folder)


def test_a_missing_event_file(spark: SparkSession, data_folder: Path) -> None:
    (data_folder / "events" / "0000000002.events").unlink()
    assert "0000000002.events: is missing: " in complaint(spark, data_folder)


def test_the_last_event_file_is_missing(spark: SparkSession, data_folder: Path) -> None:
    last = sorted(data_folder.glob("events/*.events"))[-1]
    last.unlink()
    assert f"{last}: is missing" in complaint(spark, data_folder)


def test_a_copy_of_a_shard_beside_it(spark: SparkSession, data_folder: Path, tmp_path: Path) -> None:
    os.system(f"cp -r {data_folder} {tmp_path}/shard-copy")
    assert "holds the same store as" in complaint(spark, tmp_path / "shard*")


def test_a_flipped_bit_in_a_sorted_file_names_file_and_offset(spark: SparkSession, data_folder: Path) -> None:
    flip(data_folder / "events" / "0000000001.events", 4096 + 100)
    told = complaint(spark, data_folder)
    assert re.search(r"0000000001\.events: corrupt at byte offset 4096: the checksum of the record does not match", told)
    told = complaint(spark, data_folder, columns="aggregate_id,data")
    assert "0000000001.events: corrupt at byte offset 4096" in told


def test_a_flipped_bit_is_noticed_by_a_look_up_and_by_selected_rows(data_folder: Path) -> None:
    def read(**options: object) -> int:
        reader = reader_of(data_folder, **options)
        return sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part))

    flip(data_folder / "events" / "0000000001.events", 4096 + 100)
    for options in ({"aggregate_id": "acc-000"}, {"endingVersion": 1}, {"types": "Opened"}):
        with pytest.raises(Corrupt, match=r"0000000001\.events: corrupt at byte offset 4096"):
            read(**options)
    assert read(aggregate_id="acc-007") > 0


def test_damage_is_told_in_permissive_mode_whatever_is_selected(data_folder: Path) -> None:
    """What is damaged may have been one of the selected events."""
    flip(data_folder / "events" / "0000000001.events", 4096 + 100)
    reader = reader_of(data_folder, mode="permissive", aggregate_id="acc-007")
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    assert [row["file"] for row in rows if row["_corrupt"]] == ["0000000001.events"]
    assert {row["aggregate_id"] for row in rows if not row["_corrupt"]} == {"acc-007"}


def test_a_flipped_bit_in_an_index_names_it(spark: SparkSession, data_folder: Path) -> None:
    path = data_folder / "events" / "0000000001.index"
    flip(path, open_index(OsFiles(), path).header.columns["ids"].offset)
    assert re.search(
        r"0000000001\.index: corrupt at byte offset \d+: .* run `eventstore rebuild`", complaint(spark, data_folder)
    )


def test_a_missing_index_and_one_of_another_file(spark: SparkSession, data_folder: Path) -> None:
    first, second = data_folder / "events" / "0000000001.index", data_folder / "events" / "0000000002.index"
    first.write_bytes(second.read_bytes())
    assert "0000000001.index: corrupt at byte offset 0: the index does not belong to its event file" in complaint(
        spark, data_folder
    )
    first.unlink()
    assert "0000000001.index: corrupt at byte offset 0: the index of a sorted event file is missing" in complaint(
        spark, data_folder
    )


def test_a_flipped_bit_in_a_file_that_is_not_sorted_yet(spark: SparkSession, tmp_path: Path) -> None:
    store = three_states(tmp_path / "shard", count=200)
    number = store.states().index("completed") + 1
    store.close()
    flip(store.file(number), 4096 + 70)
    assert re.search(rf"{store.file(number)}: corrupt at byte offset 4096: the checksum", complaint(spark, store.path))


def test_rot_in_the_middle_of_the_ongoing_file(spark: SparkSession, tmp_path: Path) -> None:
    store = three_states(tmp_path / "shard", count=200)
    path = store.file(len(store.states()))
    flip(path, 4096 + 70)
    told = complaint(spark, store.path)
    assert re.search(rf"{path}: corrupt at byte offset 4096: .* though the file was durable up to byte \d+", told)
    store.close()


WRONG_OPTIONS: Final[list[tuple[dict[str, str], str]]] = [
    ({"mode": "dropmalformed"}, "mode is 'dropmalformed', allowed are failfast and permissive"),
    ({"partitionBytes": "1"}, "partitionBytes is '1', allowed are 65536 to"),
    ({"maxEventsPerTrigger": "many"}, "maxEventsPerTrigger is 'many', allowed are 1 to"),
    ({"columns": "aggregate_id,colour"}, "there is no column 'colour'; there are aggregate_id, version"),
    ({"colour": "red"}, "there is no option 'colour'; there are path, paths, columns"),
    ({"partitionByte": "1"}, "there is no option 'partitionByte', did you mean partitionBytes\\? there are path"),
    ({"after": "[1]"}, "after is '\\[1\\]', expected a JSON object of sequences by the uuid of a store"),
    ({"upto": '{"shard-0": 12}'}, "expected a JSON object of sequences by the uuid of a store"),
    (
        {"after": f'{{"{NOWHERE}": 9}}'},
        rf"after names store {NOWHERE}, .* not among .*: \S{{36}} in /.*; name its data folder",
    ),
    (
        {"upto": f'{{"{NOWHERE}": 1}}'},
        rf"upto names store {NOWHERE}, .* not among .*: \S{{36}} in /.*; name its data folder",
    ),
    ({"pushdown": "true"}, r"there is no pushdown any more: .* select what is read by the options types, aggregate_id, "),
    ({"types": "Opened,,Noted"}, "types has 0 bytes, allowed are 1 to 255"),
    ({"types": "[Opened]"}, r"types is '\[Opened\]', expected a JSON array of texts, since it begins with a bracket"),
    ({"aggregate_id": "[1]"}, r"aggregate_id is '\[1\]', expected a JSON array of texts"),
    ({"aggregate_id": "[]"}, r"aggregate_id is '\[\]', expected a JSON array of texts"),
    ({"aggregate_prefix": "a" * 256}, "aggregate_prefix has 256 bytes, allowed are 0 to 255"),
    ({"startingVersion": "0"}, "startingVersion is '0', allowed are 1 to"),
    (
        {"startingVersion": "3", "endingVersion": "2"},
        "startingVersion 3 is after endingVersion 2: no event is between them",
    ),
    (
        {"startingTimestamp": "yesterday"},
        "startingTimestamp is 'yesterday', expected ISO 8601 such as 2026-01-31T12:00:00Z",
    ),
    ({"endingTimestamp": "2026-01-31"}, r"endingTimestamp '2026-01-31' has no time zone, such as Z or \+01:00"),
]


@pytest.mark.parametrize(("options", "told"), WRONG_OPTIONS)
def test_options_that_are_none(data_folder: Path, options: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        reader_of(data_folder, **options).partitions()


@pytest.mark.long
def test_an_option_that_is_none_is_what_spark_tells(spark: SparkSession, data_folder: Path) -> None:
    for options, told in WRONG_OPTIONS:
        assert re.search(f"(?i:{told})", complaint(spark, data_folder, **options))  # Spark passes names in lower case


@pytest.mark.long
def test_an_option_that_is_none_is_what_spark_tells_of_a_stream(spark: SparkSession, data_folder: Path, tmp_path: Path) -> None:
    for number, (options, told) in enumerate(WRONG_OPTIONS):
        with pytest.raises(PySparkException, match=f"(?i:{told})"):
            Sink(tmp_path / f"{number}").run(follow(spark, data_folder, **options))


def test_an_option_of_streams_is_what_spark_tells_of_a_query_that_reads_once(spark: SparkSession, data_folder: Path) -> None:
    for name, value in {"startingOffsets": "latest", "maxEventsPerTrigger": "9"}.items():
        told = f"{name} is an option of readStream; a query that reads once selects events by after and upto"
        assert told in complaint(spark, data_folder, **{name: value})


def test_what_is_read_without_pushdown_may_still_be_asked_for(data_folder: Path) -> None:
    assert reader_of(data_folder, pushdown="false").partitions()


@pytest.mark.parametrize("option", ["after", "upto"])
def test_a_sequence_after_the_end_of_its_store_is_refused(data_folder: Path, option: str) -> None:
    store = MadeStore(data_folder)
    uuid, last = store.uuid, store.sequence
    store.close()
    with pytest.raises(InvalidArgument, match=rf"{option} is {last + 1} for store {uuid}, which ends at sequence {last} \(/"):
        reader_of(data_folder, **{option: json.dumps({uuid: last + 1})}).partitions()
    reader_of(data_folder, **{option: json.dumps({uuid: last})}).partitions()


def test_a_table_is_refused_with_what_to_use_instead(spark: SparkSession, data_folder: Path) -> None:
    """Spark makes the source of a table without its options: a query could not find the data folder."""
    instead = "use CREATE TEMPORARY VIEW … USING eventstore OPTIONS"
    for place in (f"OPTIONS (path '{data_folder}')", f"LOCATION '{data_folder}'"):
        with pytest.raises(PySparkException, match=f"CREATE TABLE … USING eventstore: .*; {instead}"):
            spark.sql(f"CREATE TABLE refused USING eventstore {place}")
    spark.sql(f"CREATE TABLE refused (aggregate_id string) USING eventstore OPTIONS (path '{data_folder}')")  # not asked
    try:
        with pytest.raises(PySparkException, match=f"of a table .* Spark passes none: {instead}"):
            spark.sql("SELECT * FROM refused").collect()
    finally:
        spark.sql("DROP TABLE refused")


def test_no_path_and_a_schema_with_other_types(spark: SparkSession, data_folder: Path) -> None:
    with pytest.raises(PySparkException, match="no path: load"):
        spark.read.format("eventstore").load().collect()
    assert "column version is requested as string, its type is bigint; cast it in the query" in complaint(
        spark, data_folder, schema="version string"
    )


def test_no_java_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(FolderRefused, match=r"install Java 17 or newer \(Debian: openjdk-17-jre-headless\), or set JAVA_HOME"):
        check_java()
    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_392\"' >&2\n")
    old.chmod(0o755)
    with pytest.raises(FolderRefused, match=r"is version 8; install Java 17"):
        check_java()


# -- permissive -----------------------------------------------------------------------------------------------------------


def test_permissive_reads_what_is_good_and_names_what_is_not(spark: SparkSession, tmp_path: Path) -> None:
    store = three_states(tmp_path / "shard", count=200)
    events, states = store.events(), store.states()
    store.close()
    damaged = [1, states.index("completed") + 1, len(states)]
    offsets = {}
    for number in damaged:
        raw = store.file(number).read_bytes()
        offsets[number] = 4096 + int.from_bytes(raw[4096 + 8 : 4096 + 12], "little")  # the second record
        flip(store.file(number), offsets[number] + 80)
    rows = load(spark, store.path, mode="permissive").collect()
    bad = [row for row in rows if row._corrupt is not None]
    assert sorted((row.file, row.shard) for row in bad) == [(f"{number:010d}.events", str(store.path)) for number in damaged]
    for row in bad:
        number = int(row.file[:10])
        assert f"corrupt at byte offset {offsets[number]}: the checksum of the record does not match" in row._corrupt
    lost = {event.sequence for event in events} - {row.sequence for row in rows}
    by_command: dict[str, set[int]] = {}
    for event in events:
        by_command.setdefault(event.command_id, set()).add(event.sequence)
    assert len([members for members in by_command.values() if members & lost]) == 3
    assert all(members <= lost for members in by_command.values() if members & lost)  # whole commits, and only these


def test_permissive_over_a_sound_store_is_the_same_rows(spark: SparkSession, data_folder: Path) -> None:
    columns = "aggregate_id,version,sequence,type,data,command_id"
    plain = load(spark, data_folder, columns=columns).collect()
    rows = load(spark, data_folder, columns=columns + ",_corrupt", mode="permissive").collect()
    assert sorted(row[:6] for row in rows) == sorted(tuple(row) for row in plain)
    assert {row._corrupt for row in rows} == {None}


@pytest.mark.parametrize("spoil", [lambda path: path.write_bytes(b""), lambda path: flip(path, 20)], ids=["empty", "header"])
def test_permissive_goes_on_behind_a_file_whose_header_is_lost(
    spark: SparkSession, data_folder: Path, spoil: Callable[[Path], None]
) -> None:
    before = load(spark, data_folder, columns="sequence,file").collect()
    spoil(data_folder / "events" / "0000000001.events")
    rows = load(spark, data_folder, mode="permissive", columns="sequence,file,_corrupt").collect()
    assert [row.file for row in rows if row._corrupt is not None] == ["0000000001.events"]
    wanted = {row.sequence for row in before if row.file != "0000000001.events"}
    assert {row.sequence for row in rows if row._corrupt is None} >= wanted
