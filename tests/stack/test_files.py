"""Files that are written whole, and folders that are removed while somebody still writes."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from stack import files
from stack.files import point_link, remove_tree, write_text


def test_what_is_written_is_whole_and_nothing_is_left_beside(tmp_path: Path) -> None:
    target = tmp_path / "file"
    write_text(target, "one")
    write_text(target, "two")
    assert target.read_text() == "two" and [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_link_is_replaced(tmp_path: Path) -> None:
    link = tmp_path / "current"
    point_link(link, "a")
    point_link(link, "b")
    assert str(link.readlink()) == "b" and [path.name for path in tmp_path.iterdir()] == ["current"]


def test_a_folder_that_is_still_written_to_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    writing = threading.Event()

    def write() -> None:
        for number in range(2000):
            try:
                (folder / f"late-{number}").touch()
            except FileNotFoundError:
                return
            writing.set()

    writer = threading.Thread(target=write)
    writer.start()
    writing.wait(10)
    remove_tree(folder)
    writer.join()
    assert not folder.exists()


def test_what_cannot_be_removed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "REMOVAL_TRIES", 1)
    with pytest.raises(FileNotFoundError):
        remove_tree(tmp_path / "absent")
