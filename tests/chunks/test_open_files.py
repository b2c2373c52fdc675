"""The pool of open files is bounded, and does not keep a file that was replaced while it was opened."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from eventstore.chunks.open_files import OpenFiles
from eventstore.errors import ReadFailed


def pool_of(opened: list[int], limit: int, while_opening: Callable[[], None] = lambda: None) -> OpenFiles[str]:
    def open_(number: int) -> str:
        opened.append(number)
        while_opening()
        return f"{number}, opening {len(opened)}"

    return OpenFiles(open_, limit, str)


def test_a_file_is_opened_once_as_long_as_it_is_in_the_pool() -> None:
    opened: list[int] = []
    pool = pool_of(opened, 2)
    assert [pool.get(1), pool.get(2), pool.get(1)] == ["1, opening 1", "2, opening 2", "1, opening 1"]


def test_the_least_recently_used_file_is_dropped_first() -> None:
    opened: list[int] = []
    pool = pool_of(opened, 2)
    for number in (1, 2, 1, 3, 1, 2):
        pool.get(number)
    assert opened == [1, 2, 3, 2]


def test_readers_of_more_files_than_the_limit_find_many_of_them_open() -> None:
    opened: list[int] = []
    pool = pool_of(opened, 100)
    for _ in range(50):
        for number in range(110):
            pool.get(number)
    assert len(opened) < 50 * 110 // 2, "if the least recently used were dropped, all would be opened again"


def test_a_dropped_file_is_opened_again() -> None:
    opened: list[int] = []
    pool = pool_of(opened, 9)
    for number in (1, 2, 3):
        pool.get(number)
    pool.drop(3)
    pool.drop_through(1)
    for number in (1, 2, 3):
        pool.get(number)
    pool.clear()
    pool.get(2)
    assert opened == [1, 2, 3, 1, 3, 2]


def test_a_file_that_is_replaced_while_it_is_opened_is_handed_out_and_not_kept() -> None:
    opened: list[int] = []
    pool = pool_of(opened, 9, lambda: pool.drop(1) if len(opened) == 1 else None)
    assert [pool.get(1), pool.get(1), pool.get(1)] == ["1, opening 1", "1, opening 2", "1, opening 2"]


def test_an_error_of_the_operating_system_names_the_file() -> None:
    def refuse(number: int) -> str:
        raise OSError(5, "Input/output error")

    with pytest.raises(ReadFailed, match="0001: opening it failed: Input/output error") as failed:
        OpenFiles(refuse, 1, lambda number: f"{number:04d}").get(1)
    assert failed.value.fields["file"] == "0001"
