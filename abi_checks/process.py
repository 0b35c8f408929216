"""What a serving process has loaded before it asks for an extension module.

An extension of the torch world is opened by an interpreter that has executed ``import torch``: libraries in the process
by then satisfy NEEDED entries by their soname, whatever the search would have found, and those loaded with RTLD_GLOBAL
lend their symbols to everything. Source: torch/__init__.py, ``_load_global_deps`` and ``_preload_cuda_deps`` (2.4 to
2.11).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from abi_checks.ldcache import host_cache
from abi_checks.loader import Loader
from abi_checks.resolution import Resolution

TORCH_GLOBAL_DEPS = "torch/lib/libtorch_global_deps.so"
TORCH_MODULE = re.compile(r"(?:^|/)torch/_C\.[^/]*so$")

# What every CPython on glibc is linked with (configure.ac: LIBM). Extension modules use it without naming it.
INTERPRETER_NEEDS = ("libm.so.6", "libc.so.6")

# Extension modules that torch/__init__.py imports, directly or through numpy.
NUMPY_MODULES = re.compile(r"(?:^|/)numpy/(?:_core|core|linalg|fft|random)/(?!.*_tests)[^/]+\.so$")

# The CUDA libraries that torch/__init__.py opens by itself: folder below nvidia/ (CUDA 12 wheels; CUDA 13 wheels share
# nvidia/cu13/lib), and file name. All of them before libtorch_global_deps where that can't find its libraries alone.
OPTIONAL = "nvtx"
PRELOADED = (
    ("cublas", r"libcublasLt\.so\.[0-9]+"),
    ("cublas", r"libcublas\.so\.[0-9]+"),
    ("cudnn", r"libcudnn\.so\.[0-9]+"),
    ("cuda_nvrtc", r"libnvrtc\.so\.[0-9]+"),
    ("cuda_nvrtc", r"libnvrtc-builtins\.so\.[0-9.]+"),
    ("cuda_runtime", r"libcudart\.so\.[0-9]+"),
    ("cuda_cupti", r"libcupti\.so\.[0-9]+"),
    ("cufft", r"libcufft\.so\.[0-9]+"),
    ("curand", r"libcurand\.so\.[0-9]+"),
    ("nvjitlink", r"libnvJitLink\.so\.[0-9]+"),
    ("cusparse", r"libcusparse\.so\.[0-9]+"),
    ("cusparselt", r"libcusparseLt\.so\.[0-9]+"),
    ("cusolver", r"libcusolver\.so\.[0-9]+"),
    ("nccl", r"libnccl\.so\.[0-9]+"),
    ("nvshmem", r"libnvshmem_host\.so\.[0-9]+"),
    ("cufile", r"libcufile\.so\.[0-9]+"),
    (OPTIONAL, r"libnvToolsExt\.so\.[0-9]+"),
)

# Which of them each release opens after libtorch_global_deps loaded well; the first row that a release reaches counts.
PRELOADED_AFTER_SUCCESS = (
    ((2, 10), re.compile("")),
    ((2, 9), re.compile("libnvrtc|libnvJitLink")),
    ((2, 6), re.compile(r"libnvrtc\.so|libnvJitLink")),
)
NEVER_GIVES_UP_SINCE = (2, 14)
LATEST = (99,)


@dataclass(frozen=True, slots=True)
class ProcessState:
    """What could be put into the process, and what could not.

    ``interpreter`` is the program's path or "" with ``interpreter_problem`` saying why; ``torch`` tells whether
    ``import torch`` took part; ``torch_problems`` holds the libraries of torch that could not be loaded.
    """

    interpreter: str
    interpreter_problem: str
    torch: bool
    torch_problems: tuple[Resolution, ...]
    closure: frozenset[str]
    """Paths of all that is loaded in the process."""


def prepare(loader: Loader, interpreter: str, paths: Sequence[str], torch_version: str) -> ProcessState:
    """Load the interpreter, and torch where ``paths`` (absolute, sorted) have it, into the loader's process.

    ``torch_version`` decides what torch opens by itself; "" is taken for the latest known.
    """
    problem = loader.start(os.path.realpath(interpreter)) if interpreter else "no interpreter is known"
    if problem:
        cache = host_cache(loader.options.machine)
        loader.begin_without_program(cache[name] for name in INTERPRETER_NEEDS if name in cache)
    state = [loader.preload(path, everywhere=False) for path in paths if NUMPY_MODULES.search(path)]
    torch_module = next((path for path in paths if TORCH_MODULE.search(path)), "")
    if torch_module:
        root = torch_module[: torch_module.rindex("torch/_C.")]
        release = tuple(int(part) for part in re.findall(r"\d+", torch_version)[:2]) or LATEST
        if not loader.would_map(root + TORCH_GLOBAL_DEPS):
            for path in _preloaded(loader, paths, root, gives_up=True):
                loader.preload(path, everywhere=False)
        state.append(loader.preload(root + TORCH_GLOBAL_DEPS, everywhere=True))
        wanted = next((pattern for since, pattern in PRELOADED_AFTER_SUCCESS if release >= since), None)
        if wanted:
            for path in _preloaded(loader, paths, root, gives_up=release < NEVER_GIVES_UP_SINCE):
                if wanted.search(path):
                    loader.preload(path, everywhere=False)
        state.append(loader.preload(torch_module, everywhere=False))
    broken = tuple(answer for answer in state if answer is not None and answer.missing and "/torch/" in answer.path)
    loaded = frozenset(node.path for node in loader.process.nodes)
    return ProcessState("" if problem else interpreter, problem, bool(torch_module), broken, loaded)


def _preloaded(loader: Loader, paths: Iterable[str], root: str, *, gives_up: bool) -> Iterator[str]:
    """The CUDA libraries of the nvidia wheels, in the order in which torch would open them.

    Where torch ``gives_up``, the first one that isn't there is the end; libnvToolsExt alone may be missing.
    """
    candidates = [path for path in paths if path.startswith(root + "nvidia/")]
    major = _cuda_major(loader, root)
    for folder, pattern in PRELOADED:
        places = [folder, f"cu{major}"] if major else [folder]
        match = next(
            (path for place in places for path in candidates if re.search(rf"nvidia/{place}/lib/{pattern}$", path)),
            None,
        )
        if match:
            yield match
        elif gives_up and folder != OPTIONAL:
            return


def _cuda_major(loader: Loader, root: str) -> str:
    """The CUDA major that torch was built for, by the runtime that its libraries link; "" where they link none."""
    for library in (TORCH_GLOBAL_DEPS, "torch/lib/libtorch_cuda.so", "torch/lib/libc10_cuda.so"):
        facts = loader.files.open(root + library)
        for name in () if isinstance(facts, str) else facts.needed:
            if name.startswith("libcudart.so."):
                return name.removeprefix("libcudart.so.")
    return ""
