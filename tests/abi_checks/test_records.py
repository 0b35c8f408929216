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


def test_the_paths_of_a_record_with_quotes_and_empty_lines():
    record = 'a.py,sha256=x,3\n"b,c.py",,\n"d""e.py",sha256=y,1\n\n../../bin/f,,\n'
    assert paths_of(record, "lib/s/") == ["lib/s/a.py", "lib/s/b,c.py", 'lib/s/d"e.py', "bin/f"]
