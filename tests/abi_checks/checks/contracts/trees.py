"""Small source trees for the contract tests."""

from pathlib import Path
from textwrap import dedent

from abi_checks.checks.contracts.source import SourceTree

COMMON = """
    from functools import lru_cache, partial
    import torch

    @lru_cache(maxsize=1)
    def is_cuda():
        return torch.cuda.is_available() and torch.version.cuda

    def _check(majors, cuda_version):
        if not is_cuda():
            return False
        return (torch.cuda.get_device_capability()[0] in majors
                and tuple(map(int, torch.version.cuda.split(".")[:2])) >= cuda_version)

    is_sm90_supported = lru_cache(maxsize=1)(partial(_check, majors=[9], cuda_version=(12, 3)))
    is_sm100_supported = lru_cache(maxsize=1)(partial(_check, majors=[10], cuda_version=(12, 8)))
"""


def tree(root: Path, files: dict[str, str | bytes]) -> SourceTree:
    """A tree with these files, a torch built for CUDA 13.0, and a package file in every folder."""
    site = root / "site"
    content = {"torch/version.py": "cuda = '13.0'\nhip = None\n", "torch/__init__.py": "", **files}
    for name, text in content.items():
        path = site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else dedent(text).encode())
        for folder in path.parents:
            if folder == site:
                break
            (folder / "__init__.py").touch()
    return SourceTree(site)
