"""docs/TUTORIAL.md: followed from top to bottom, every file, command and answer is what the page says."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.documents.followed_page import FollowedPage
from tests.documents.pages import STRICT, text_of
from tests.domain.postgresql import running_server, why_not

PAGE = text_of("docs/TUTORIAL.md")
SHOWN_DATABASE = "postgresql://shop:secret@localhost/shop"
POSTGRESQL = PAGE.index("## PostgreSQL")
SALE = """
```console store
store$ eventstore serve --data ./data --domain shop:app
```
```console you
$ eventstore send --domain shop:app AddStock '{"stock": "stock-tea", "quantity": 10}'
stock-tea is at version 1 (sequence 1)
$ eventstore send --domain shop:app PlaceOrder '{"order": "order-549fca5a0b52", "item": "tea", "quantity": 3, "cents": 1500}'
order-549fca5a0b52 is at version 1 (sequence 2)
```
"""


@pytest.mark.heavy
def test_the_tutorial_can_be_followed_from_top_to_bottom(tmp_path: Path) -> None:
    with FollowedPage(tmp_path) as followed:
        followed.follow(PAGE[:POSTGRESQL])
    checked = subprocess.run(STRICT, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.long
def test_the_tutorial_can_be_followed_on_a_node_of_three_shards(tmp_path: Path) -> None:
    with FollowedPage(tmp_path, shards=3) as followed:
        followed.follow(PAGE[:POSTGRESQL])


@pytest.mark.heavy
def test_the_read_model_moves_to_postgresql(tmp_path: Path) -> None:
    """With the files as they are by then, and the sale that the section shows."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    files = re.sub(r"^```console.*?^```$", "", PAGE[:POSTGRESQL], flags=re.M | re.S)
    with running_server() as database, FollowedPage(tmp_path, {SHOWN_DATABASE: database}) as followed:
        followed.follow(files + SALE + PAGE[POSTGRESQL:])
