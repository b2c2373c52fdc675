"""A folder on any file system that Spark can write to, through Hadoop's client: names, small documents, renames."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import IllegalArgumentException

from eventstore.errors import FolderRefused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PROBE: Final = "_eventstore-probe"
_ADVICE: Final = "choose a writable folder on a file system that Spark knows"


class TargetFolder:
    """The folder `path`, which is a path of the local file system, or a URL such as `hdfs://…`. Relative local paths are
    relative to the driver.

    Raises:
        FolderRefused: the folder cannot be created, or is not writable.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        jvm: Any = spark.sparkContext._jvm
        configuration = spark.sparkContext._jsc.hadoopConfiguration()
        self._path_of = jvm.org.apache.hadoop.fs.Path
        self._text = jvm.org.apache.commons.io.IOUtils
        try:
            base = self._path_of(path)
            self._system = base.getFileSystem(configuration)
            self._base = self._system.makeQualified(base)
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
        return sorted(each for each in found if each != _PROBE)

    def remove(self, name: str) -> None:
        self._system.delete(self._inside(name), True)

    def rename(self, name: str, to: str) -> None:
        """Renames in one step, on file systems that can (local, HDFS).

        Raises:
            FolderRefused: the rename failed.
        """
        if not self._system.rename(self._inside(name), self._inside(to)):
            raise FolderRefused(self.at(to), f"could not be renamed; its content is in {self.at(name)}")

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
