from __future__ import annotations

from pathlib import Path

import pytest

from abi_checks.errors import UsageError
from stack.patching.series import load_all
from tests.stack.patching.conftest import write_series


def test_the_shipped_series() -> None:
    by_release = {f"{s.distribution}-{s.version}": s for s in load_all()}
    defaults = {
        release: [(patch.name, patch.default) for patch in series.patches] for release, series in by_release.items()
    }
    assert defaults == {
        "flashinfer-python-0.6.4": [("sm120-allreduce-fusion", False)],
        "sglang-0.5.9": [
            ("sm120-symmetric-memory", True),
            ("kimi-k25-eagle3", True),
            ("eagle3-capture-layers", True),
            ("sm120-allreduce-fusion", False),
        ],
    }
    for series in by_release.values():
        for patch in series.patches:
            assert patch.not_run, "each of these patches has something that was never run, and must say so"
            for release in patch.together_with:
                partner = next(p for p in by_release[release].patches if p.name == patch.name)
                assert patch.release in partner.together_with
                assert partner.default == patch.default


def _break(folder: Path, old: str, new: str) -> None:
    source = folder / "alpha-1.0" / "series.toml"
    text = source.read_text()
    assert old in text
    source.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('version = "1.0"', 'version = "1.1"', r"is for alpha 1\.1, and its folder is named alpha-1\.0"),
        ('upstream = "u"\n', "", "patch base: lacks upstream"),
        ('upstream = "u"\n', 'upstream = "u"\nfuzz = 2\n', "patch base: unknown keys fuzz"),
        ('path = "alpha/two.py"', 'path = "alpha/six.py"', "which is not what series.toml lists"),
        ("[[patch]]", "[[patch", "not a valid TOML file"),
    ],
)
def test_a_bad_series_is_named(series_folder: Path, old: str, new: str, message: str) -> None:
    _break(series_folder, old, new)
    with pytest.raises(UsageError, match=message):
        load_all(series_folder)


def test_a_hash_that_is_none_is_named(series_folder: Path) -> None:
    text = (series_folder / "alpha-1.0" / "series.toml").read_text()
    digest = text.split('before = "')[1][:64]
    _break(series_folder, digest, digest.upper())
    with pytest.raises(UsageError, match="before and after must be SHA-256 in lower-case hex"):
        load_all(series_folder)


def test_patches_of_one_file_must_follow_each_other(tmp_path: Path) -> None:
    files = {"alpha/one.py": (b"a\n", b"b\n")}
    write_series(tmp_path, "alpha", "1.0", [({"name": "first"}, files), ({"name": "second"}, files)])
    with pytest.raises(
        UsageError, match=r"patch second: alpha/one\.py before it must be what the patch before it leaves"
    ):
        load_all(tmp_path)
