"""`eventstore-spark ship`: packs our packages for `spark-submit --py-files`."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Annotated

import typer

import eventstore_cluster
from eventstore import errors


def ship(
    archive: Annotated[
        Path, typer.Argument(metavar="FILE.zip", help="The archive; overwritten if it exists.", show_default=False)
    ],
) -> None:
    """Pack the code that workers need, for spark-submit --py-files.

    Workers must have pyspark, pyarrow, numpy, msgpack and crc32c installed.

    \b
    Example:
      eventstore-spark ship es.zip
    """
    count = pack(archive)
    print(f"{count} modules in {archive}")


def pack(archive: Path) -> int:
    """Writes the modules of `eventstore`, of the cluster and of this package; returns their number.

    Raises:
        FolderRefused: the file cannot be written.
    """
    count = 0
    try:
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as target:
            for package in (Path(errors.__file__).parent, Path(eventstore_cluster.__file__).parent, Path(__file__).parents[1]):
                for path in sorted(package.rglob("*.py")):
                    target.write(path, path.relative_to(package.parent))
                    count += 1
    except OSError as error:
        raise errors.FolderRefused(str(archive), f"cannot be written ({error.strerror}); choose another place") from None
    return count
