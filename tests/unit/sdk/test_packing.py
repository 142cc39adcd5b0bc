"""A working directory as an archive: what travels, what stays at home, and where the bounds are."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from shoal.errors import BadInput
from shoal.sdk import ignoring, packing


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def names(archive: bytes) -> list[str]:
    return zipfile.ZipFile(io.BytesIO(archive)).namelist()


@pytest.mark.parametrize(
    "patterns, path, folder, ignored",
    [
        ("*.log", "a/b.log", False, True),
        ("/build", "build", True, True),
        ("/build", "src/build", True, False),
        ("data/", "data", True, True),
        ("data/", "data", False, False),
        ("docs/*.md", "docs/a.md", False, True),
        ("docs/*.md", "docs/sub/a.md", False, False),
        ("**/cache", "x/y/cache", True, True),
        ("a/**/z.txt", "a/b/c/z.txt", False, True),
        ("*.txt\n!keep.txt", "keep.txt", False, False),
        ("file[0-9].bin", "file7.bin", False, True),
        ("file[!0-9].bin", "file7.bin", False, False),
        ("# comment\n\n", "anything", False, False),
        (r"\#odd", "#odd", False, True),
    ],
)
def test_ignore_patterns_read_as_git_reads_them(patterns: str, path: str, folder: bool, ignored: bool) -> None:
    assert ignoring.is_ignored(path, folder=folder, rules=ignoring.read(patterns)) is ignored


def test_what_ignore_files_name_stays_at_home(tmp_path: Path) -> None:
    write(tmp_path, train_dot_py="print(1)", _dot_gitignore="*.bin\n/out/\n", model_dot_bin="x", out__log_dot_txt="x")
    write(tmp_path, pkg__mod_dot_py="1", pkg___dot_rayignore="*.csv\n", pkg__rows_dot_csv="1", rows_dot_csv="2")
    write(tmp_path, _dot_git__config="x", __pycache____a_dot_pyc="x")
    assert names(packing.pack(tmp_path)) == [".gitignore", "pkg/.rayignore", "pkg/mod.py", "rows.csv", "train.py"]


def test_the_same_files_make_the_same_archive(tmp_path: Path) -> None:
    write(tmp_path, b_dot_py="2", a_dot_py="1")
    first = packing.pack(tmp_path)
    (tmp_path / "a.py").touch()
    assert packing.pack(tmp_path) == first


def test_a_link_out_of_the_folder_does_not_travel(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "secret"
    inside.mkdir()
    outside.write_text("password")
    write(inside, train_dot_py="1")
    (inside / "leak").symlink_to(outside)
    (inside / "same.py").symlink_to(inside / "train.py")
    assert names(packing.pack(inside)) == ["same.py", "train.py"]


def test_too_much_is_refused_with_the_largest_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "MOST_READ", 1000)
    write(tmp_path, train_dot_py="1", big_dot_dat="x" * 2000)
    with pytest.raises(BadInput, match=r"largest: big.dat .*\.rayignore"):
        packing.pack(tmp_path)
    with pytest.raises(BadInput, match="is no folder"):
        packing.pack(tmp_path / "none")
