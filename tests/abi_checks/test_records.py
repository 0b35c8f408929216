"""Paths of RECORD files."""

import pytest

from abi_checks.records import below, paths_of


@pytest.mark.parametrize(
    ("prefix", "path", "expected"),
    [
        ("lib/site-packages/", "a/b.py", "lib/site-packages/a/b.py"),
        ("lib/site-packages/", "../../bin/a", "bin/a"),
        ("lib/site-packages/", "./a.py", "lib/site-packages/a.py"),
        ("lib/site-packages/", "a//b/./c.py", "lib/site-packages/a/b/c.py"),
        ("lib/site-packages/", "a/.hidden", "lib/site-packages/a/.hidden"),
        ("lib/site-packages/", "a..b.py", "lib/site-packages/a..b.py"),
        ("lib/site-packages/", "/opt/a", "/opt/a"),
        ("", "a.py", "a.py"),
        ("", "../a.py", "../a.py"),
    ],
)
def test_a_path_counts_from_the_folder_of_its_distribution(prefix, path, expected):
    assert below(prefix, path) == expected


@pytest.mark.parametrize(
    "line", ["a.py", "./a.py", "/a.py", "../../a.py", "a/./b.py", "a//b.py", ".a/b", '"a.py"', '"./a"']
)
def test_each_kind_of_line_by_itself_and_after_another(line):
    assert paths_of(f"{line},,\n", "lib/s/") == [below("lib/s/", line.strip('"'))]
    assert paths_of(f"b.py,,\n{line},,\n", "lib/s/") == ["lib/s/b.py", below("lib/s/", line.strip('"'))]


def test_the_paths_of_a_record_with_quotes_and_empty_lines():
    record = 'a.py,sha256=x,3\n"b,c.py",,\n"d""e.py",sha256=y,1\n\n../../bin/f,,\n'
    assert paths_of(record, "lib/s/") == ["lib/s/a.py", "lib/s/b,c.py", 'lib/s/d"e.py', "bin/f"]
