"""`eventstore access`: what it says of a folder."""

from __future__ import annotations

from pathlib import Path

from tests.cli.processes import output, run


def test_a_list_without_identities_names_the_file_it_looked_for(tmp_path: Path) -> None:
    empty = run("access", "list", "--data", tmp_path / "other")
    assert (empty.returncode, empty.stdout) == (0, "")
    assert empty.stderr.startswith(f"no identity is in {tmp_path}/other/access.json; ")
    output("access", "add", "ann", "--grant", "reader", "--data", tmp_path / "data")
    assert "ann" in output("access", "list", "--data", tmp_path / "data")
