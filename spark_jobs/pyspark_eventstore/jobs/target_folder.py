"""A folder on any file system that Spark can write to, through Hadoop's client: names, small documents, renames."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import IllegalArgumentException

from eventstore.errors import FolderRefused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PROBE: Final = "_eventstore-probe"
_LOCK: Final = "running"
_LOCK_BYTES_MAX: Final = 4096
_RENAMING: Final = frozenset(("file", "hdfs", "viewfs", "ofs", "o3fs", "abfs", "abfss"))
_ADVICE: Final = "choose a writable folder on a file system that Spark knows"


class TargetFolder:
    """The folder `path`, which is a path of the local file system, or a URL such as `hdfs://…`. Relative local paths are
    relative to the driver. It is created, unless `create` is False.

    Raises:
        FolderRefused: the folder cannot be created, or is not writable.
    """

    def __init__(self, spark: SparkSession, path: str, *, create: bool = True) -> None:
        jvm: Any = spark.sparkContext._jvm
        configuration = spark.sparkContext._jsc.hadoopConfiguration()
        self._path_of = jvm.org.apache.hadoop.fs.Path
        self._text = jvm.org.apache.commons.io.IOUtils
        try:
            base = self._path_of(path)
            self._system = base.getFileSystem(configuration)
            self._base = self._system.makeQualified(base)
            if not create:
                return
            if not self._system.mkdirs(self._base):
                raise FolderRefused(path, f"cannot be created; {_ADVICE}")
            probe = self._inside(_PROBE)  # the file system decides who may write, not the mode bits
            self._system.create(probe, True).close()
            self._system.delete(probe, False)
        except Py4JJavaError as error:
            raise FolderRefused(path, f"cannot be written ({error.java_exception.getMessage()}); {_ADVICE}") from None
        except IllegalArgumentException as error:
            raise FolderRefused(path, f"is not a path ({error}); {_ADVICE}") from None

    def __str__(self) -> str:
        return str(self._base.toString())

    def at(self, name: str) -> str:
        """Returns the path of an entry of the folder, as Spark expects it."""
        return f"{self}/{name}"

    def exists(self, name: str = "") -> bool:
        return bool(self._system.exists(self._inside(name)))

    def names(self, name: str = "") -> list[str]:
        """Lists a folder, sorted; empty if it does not exist. (A process that dies may leave its probe.)"""
        if not self.exists(name):
            return []
        found = (str(status.getPath().getName()) for status in self._system.listStatus(self._inside(name)))
        return sorted(each for each in found if each not in (_PROBE, _LOCK))

    def remove(self, name: str) -> None:
        self._system.delete(self._inside(name), True)

    def rename(self, name: str, to: str) -> None:
        """Renames in one step, on file systems that can (local, HDFS).

        Raises:
            FolderRefused: the rename failed.
        """
        if not self._system.rename(self._inside(name), self._inside(to)):
            raise FolderRefused(self.at(to), f"could not be renamed; its content is in {self.at(name)}")

    def move(self, name: str, to: TargetFolder, as_name: str = "") -> None:
        """Renames an entry into another folder of the same file system, or to that folder itself, which is empty then.

        Raises:
            FolderRefused: the rename failed.
        """
        if not as_name:
            for each in self.names(name):
                self.move(f"{name}/{each}", to, each)
            self.remove(name)
        elif not self._system.rename(self._inside(name), to._inside(as_name)):
            raise FolderRefused(to.at(as_name), f"could not be renamed; its content is in {self.at(name)}")

    def take(self, other: TargetFolder, as_name: str) -> None:
        """Renames the folder `other` itself to an entry of this one, in one step.

        Raises:
            FolderRefused: the rename failed.
        """
        if not self._system.rename(other._base, self._inside(as_name)):
            raise FolderRefused(
                str(other), f"could not be renamed to {self.at(as_name)}; is it a folder, not in use as a mount?"
            )

    def give(self, name: str, other: TargetFolder) -> None:
        """Renames an entry to the folder `other` itself, in one step. A folder that is there must be empty.

        Raises:
            FolderRefused: there is another folder, or the rename failed.
        """
        if other.exists():
            if other.names():
                raise FolderRefused(
                    str(other),
                    f"was created again, and its content is in {self.at(name)}; move what it has elsewhere, and repeat",
                )
            other.remove("")  # Hadoop would move the entry into it
        if not self._system.rename(self._inside(name), other._base):
            raise FolderRefused(str(other), f"could not be renamed; its content is in {self.at(name)}")

    def enter(self, name: str, as_name: str) -> None:
        """Renames a file within the folder; creates the folders of its new name.

        Raises:
            FolderRefused: the rename failed.
        """
        self._system.mkdirs(self._inside(as_name).getParent())
        self.rename(name, as_name)

    def files(self, name: str = "") -> dict[str, int]:
        """Lists the files below an entry, at any depth, sorted by their paths from there: path to bytes."""
        if not self.exists(name):
            return {}
        found, sizes = self._system.listFiles(self._inside(name), True), dict[str, int]()
        beginning = f"{self.at(name) if name else self}/"
        while found.hasNext():
            status = found.next()
            sizes[str(status.getPath().toString()).removeprefix(beginning)] = int(status.getLen())
        return dict(sorted(sizes.items()))

    def sync(self) -> None:
        """Makes what the folder holds durable, on a local file system; others do so when a file is closed."""
        if self._is_local:
            for folder, _, names in os.walk(self._base.toUri().getPath()):
                for path in (*(os.path.join(folder, name) for name in names), folder):
                    descriptor = os.open(path, os.O_RDONLY)
                    try:
                        os.fsync(descriptor)
                    finally:
                        os.close(descriptor)

    @property
    def renames_folders(self) -> bool:
        """Whether a folder is renamed in one step here. Object stores copy every file of it."""
        return str(self._base.toUri().getScheme()) in _RENAMING

    def keep_only(self, name: str, ending: str) -> None:
        """Removes the files of an entry, at any depth, whose names do not end so: checksums and marks of Hadoop."""
        system = self._system.getRawFileSystem() if self._is_local else self._system
        found, unwanted = system.listFiles(self._inside(name), True), list[Any]()
        while found.hasNext():
            path = found.next().getPath()
            if not str(path.getName()).endswith(ending):
                unwanted.append(path)
        for path in unwanted:
            system.delete(path, False)

    @property
    def _is_local(self) -> bool:
        return str(self._base.toUri().getScheme()) == "file"

    @contextmanager
    def locked(self, what: str) -> Iterator[None]:
        """Keeps others from doing the same here meanwhile. On a local file system the lock ends with its process; elsewhere it
        is a document, which a process that is killed leaves behind.

        Raises:
            FolderRefused: it is locked; names the process, and since when.
        """
        said = {"what": what, "pid": os.getpid(), "host": socket.gethostname(), "since": f"{datetime.now(UTC):%FT%TZ}"}
        with self._local_lock(said) if self._is_local else self._lock_document(said):
            yield

    @contextmanager
    def _local_lock(self, said: dict[str, Any]) -> Iterator[None]:
        descriptor = os.open(f"{self._base.toUri().getPath()}/{_LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                text = os.pread(descriptor, _LOCK_BYTES_MAX, 0).decode(errors="replace")
                raise self._running(text, "wait until it has ended") from None
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(said).encode(), 0)
            yield
        finally:
            os.close(descriptor)

    @contextmanager
    def _lock_document(self, said: dict[str, Any]) -> Iterator[None]:
        path = self._inside(_LOCK)
        try:
            stream = self._system.create(path, False)
        except Py4JJavaError:
            if not self.exists(_LOCK):
                raise
            text = json.dumps(self.read(_LOCK))
            raise self._running(text, f"wait until it has ended; if it was killed, remove {self.at(_LOCK)}") from None
        try:
            stream.write(json.dumps(said).encode())
            stream.close()
            yield
        finally:
            self._system.delete(path, False)

    def _running(self, text: str, next_step: str) -> FolderRefused:
        what = "export"
        try:
            said = json.loads(text)
            what = said.get("what", what)  # earlier versions locked it for an export alone
            process = f"process {said['pid']} on {said['host']}, since {said['since']}"
        except (ValueError, TypeError, KeyError):  # it has just begun
            process = "one that has just begun"
        return FolderRefused(str(self), f"another {what} is running: {process}; {next_step}")

    def write(self, name: str, document: dict[str, Any]) -> None:
        """Writes a new document, whole or not at all."""
        temporary = self._inside(name + ".tmp")
        stream = self._system.create(temporary, True)
        try:
            stream.write(json.dumps(document, indent=2, sort_keys=True).encode() + b"\n")
        finally:
            stream.close()
        self._system.delete(self._inside(name), False)
        self.rename(name + ".tmp", name)

    def read(self, name: str) -> dict[str, Any]:
        stream = self._system.open(self._inside(name))
        try:
            document = json.loads(str(self._text.toString(stream, "UTF-8")))
        except ValueError:
            document = None
        finally:
            stream.close()
        if not isinstance(document, dict):
            raise FolderRefused(self.at(name), "is not a JSON object; restore it, or choose an empty folder")
        return document

    def _inside(self, name: str) -> Any:
        return self._path_of(self._base, name) if name else self._base
