"""A backup under a prefix of a bucket of S3, or of a store that speaks its protocol.

Credentials come from the environment (`AWS_ACCESS_KEY_ID` and its neighbours) or from the machine, never from an address, and
are in no message. An object appears when all of it was sent. The manifest is replaced on the condition that it is still the one
that was read, so that of two backups at the same time one is refused.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from eventstore.backup.manifest import MANIFEST
from eventstore.errors import FolderRefused, InvalidArgument
from eventstore.extras import advice

if TYPE_CHECKING:
    from eventstore.chunks.files import File

S3: Final = "s3://"
_READ_AHEAD_BYTES: Final = 8 * 1024 * 1024
"""Of each request: records are asked for a megabyte at a time."""
_SECRETS: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_SAID_MAX: Final = 300
_RETRIES: Final[Any] = {"max_retries": 4, "retry_timeout": timedelta(seconds=60)}


class S3Target:
    """A backup in a bucket. See `BackupTarget`."""

    def __init__(self, address: str) -> None:
        """Asks nothing of the store yet.

        Raises:
            InvalidArgument: the address is none, or has credentials in it; or the library is not installed.
        """
        bucket, _, prefix = address.removeprefix(S3).rstrip("/").partition("/")
        if "@" in bucket or ":" in bucket or not bucket:
            why = "give s3://BUCKET/PREFIX, and credentials in the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)"
            raise InvalidArgument(f"this is not the address of a bucket: {why}", field="place")
        try:
            import obstore
            from obstore.store import S3Store
        except ImportError:
            why = f"a backup in an object store needs a library that is missing; {advice('s3')}"
            raise InvalidArgument(why, field="place") from None
        plain = any(os.environ.get(name, "").startswith("http://") for name in _ENDPOINTS)
        self.name = f"{S3}{bucket}/{prefix}".rstrip("/")
        self.files = self
        self._obstore: Any = obstore
        self._root = Path(f"s3:/{bucket}/{prefix}")
        with self._told():
            self._store = S3Store(bucket, prefix=prefix or None, client_options={"allow_http": plain}, retry_config=_RETRIES)
        self._e_tag: str | None = None

    def path(self, name: str) -> Path:
        return self._root / name

    def open(self, path: Path) -> File:
        key = str(path.relative_to(self._root))
        with self._told():
            size = int(self._obstore.head(self._store, key)["size"])
        return cast("File", _S3File(self, key, size))

    def read(self, key: str, start: int, length: int) -> bytes:
        """Returns bytes of an object, all of which are there."""
        with self._told():
            return bytes(self._obstore.get_range(self._store, key, start=start, length=length)) if length else b""

    def manifest(self) -> bytes | None:
        try:
            with self._told():
                found = self._obstore.get(self._store, MANIFEST)
                self._e_tag = found.meta["e_tag"]
                return bytes(found.bytes())
        except FileNotFoundError:
            self._e_tag = None
            return None

    def replace_manifest(self, raw: bytes) -> None:
        mode = "create" if self._e_tag is None else {"e_tag": self._e_tag}
        errors = self._obstore.exceptions
        try:
            with self._told(errors.AlreadyExistsError, errors.PreconditionError, errors.NotSupportedError):
                done = self._obstore.put(self._store, MANIFEST, raw, mode=mode)
        except (errors.AlreadyExistsError, errors.PreconditionError):
            raise FolderRefused(self.name, "another backup was made here meanwhile; make this one again") from None
        except errors.NotSupportedError:  # a store without conditions
            with self._told():
                done = self._obstore.put(self._store, MANIFEST, raw)
        self._e_tag = done["e_tag"]

    def names(self) -> set[str]:
        with self._told():
            found = {str(each["path"]) for page in self._obstore.list(self._store) for each in page}
        return {name for name in found if name != MANIFEST}

    def put(self, name: str, parts: Iterable[bytes], same_as: File | None = None) -> None:
        with self._told():
            self._obstore.put(self._store, name, (part for part in parts if part))

    def link(self, name: str, source: Path) -> None:
        raise InvalidArgument(f"{self.name} is not a folder, so nothing can be linked there; leave out --link", field="link")

    def delete(self, name: str) -> None:
        with self._told(), contextlib.suppress(FileNotFoundError):
            self._obstore.delete(self._store, name)

    def close(self) -> None:
        pass

    @contextlib.contextmanager
    def _told(self, *passed: type[Exception]) -> Iterator[None]:
        """Turns an error of the library into one that names the place and has no secrets. `passed`: stay as they are."""
        try:
            yield
        except passed:
            raise
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error):
                raise FolderRefused(self.name, "there is no such bucket; create it first") from None
            raise FileNotFoundError(2, "there is no such object", self.name) from None
        except self._obstore.exceptions.BaseError as error:
            raise FolderRefused(
                self.name, f"the object store does not answer as it should: {_without_secrets(error)}"
            ) from None


def _without_secrets(error: Exception) -> str:
    said = " ".join(str(error).partition("\n\nDebug source")[0].split())
    for secret in filter(None, map(os.environ.get, _SECRETS)):
        said = said.replace(secret, "…")
    return said[:_SAID_MAX]


class _S3File:
    """An object, read a few megabytes at a time. What is for writing is not there."""

    def __init__(self, target: S3Target, key: str, size: int) -> None:
        self._target, self._key, self._size = target, key, size
        self._start, self._block = 0, b""

    def read_at(self, offset: int, length: int) -> bytes:
        end = min(offset + length, self._size)
        if offset >= end:
            return b""
        if not self._start <= offset <= end <= self._start + len(self._block):
            wanted = min(max(_READ_AHEAD_BYTES, end - offset), self._size - offset)
            self._start, self._block = offset, self._target.read(self._key, offset, wanted)
        return self._block[offset - self._start : end - self._start]

    def size(self) -> int:
        return self._size

    def map(self) -> memoryview:
        return memoryview(self._target.read(self._key, 0, self._size))

    def close(self) -> None:
        self._block = b""
