"""docs/CHANGING.md: its example is carried out from top to bottom, on a real server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documents.followed_page import FollowedPage
from tests.documents.pages import text_of

PAGE = text_of("docs/CHANGING.md")


@pytest.mark.heavy
def test_the_example_can_be_followed_from_top_to_bottom(tmp_path: Path) -> None:
    with FollowedPage(tmp_path) as followed:
        followed.follow(PAGE)
