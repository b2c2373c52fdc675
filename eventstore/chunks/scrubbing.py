"""Reads a chunk file that nothing writes to any more from end to end, a piece at a time, and checks it against its header,
every record's CRC, the number and sum of its records, and its footer.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

from eventstore.chunks import slab
from eventstore.chunks.files import File, OpensFiles, naming
from eventstore.chunks.header import FOOTER_BYTES, HEADER_BYTES, RECORDS_FROM, ChunkHeader, check_footer, decode_header
from eventstore.chunks.record import UNORDERED, Framing
from eventstore.errors import Corrupt, FolderRefused

_PIECE_BYTES: Final = 1024 * 1024
_SUM_MASK: Final = 2**64 - 1


class ChunkCheck:
    """One reading of the completed chunk at `path`, also if another file replaces it meanwhile.

    Attributes:
        header: of the chunk.
        file: the chunk, to be read only.
        data: the records that the last step has read, from byte `base` of the file on.
        offsets: where each of them begins in the file.
    """

    def __init__(self, files: OpensFiles, path: Path, kind: int, framing: Framing) -> None:
        """Opens the chunk and reads its header. `framing`: of its records.

        Raises:
            Corrupt: the header is damaged.
            FileNotFoundError, OSError
        """
        self._name, self._framing = str(path), framing
        self.file: File = files.open(path)
        self.data, self.base = b"", RECORDS_FROM
        self.offsets: list[int] = []
        try:
            with naming(path):
                self.header: ChunkHeader = decode_header(self.file.read_at(0, HEADER_BYTES), self._name, kind)
        except FolderRefused as error:  # among files of this format
            self.file.close()
            raise Corrupt(self._name, 0, str(error.fields["why"])) from None
        except BaseException:
            self.file.close()
            raise
        self.done = RECORDS_FROM
        self._records = self._sum = 0

    def step(self, bytes_max: int) -> int:
        """Reads the next records, about `bytes_max` bytes. Returns how many bytes were read; 0: all of it was, and is good.

        Raises:
            Corrupt: what is damaged, and where.
            OSError
        """
        end = self.header.end
        if self.done >= end:
            self._finish()
            return 0
        wanted = min(bytes_max, end - self.done)
        while True:
            data = self.file.read_at(self.done, wanted)
            found = slab.walk(data, self.done, UNORDERED, self._framing)
            if found.offsets:
                break
            if len(data) < wanted or not found.wants or wanted == end - self.done:
                raise Corrupt(self._name, found.end, found.fault or "no record")
            wanted = min(end - self.done, found.wants)
        if found.fault is not None and not found.wants:
            raise Corrupt(self._name, found.end, found.fault)
        read = found.end - self.done
        self.base, self.done, self.offsets = self.done, found.end, found.offsets
        self.data = data if read == len(data) else data[:read]
        self._records += len(found.offsets)
        self._sum += found.checksum
        return read

    def _finish(self) -> None:
        header = self.header
        if (self._records, self._sum & _SUM_MASK) != (header.records, header.checksum):
            raise Corrupt(self._name, header.end, "the records do not match the header's count and checksum")
        check_footer(self.file.read_at(header.end, FOOTER_BYTES), header, self._name)
        if self.file.size() != header.end + FOOTER_BYTES:
            raise Corrupt(self._name, header.end, f"{self.file.size()} bytes, its header says {header.end + FOOTER_BYTES}")

    def read_all(self) -> None:
        """Reads all of it at once.

        Raises:
            Corrupt: what is damaged, and where.
            OSError
        """
        while self.step(_PIECE_BYTES):
            pass

    def copied(self) -> Iterator[bytes]:
        """Yields the bytes of the whole file, in order; records only once they are known to be good. Raises as `step`."""
        yield self.file.read_at(0, self.done)
        while self.step(_PIECE_BYTES):
            yield self.data
        yield self.header.footer()

    def close(self) -> None:
        self.file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
