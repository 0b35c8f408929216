"""Whose symbol is it? The remedy for an unresolved symbol differs by the library that should have had it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from abi_checks.driver import CUDA_DRIVER_SYMBOL, NVML_SYMBOL, PYTHON_SYMBOL


class Owner(StrEnum):
    """A family of libraries that share one remedy."""

    TORCH = "torch"
    TORCH_STABLE = "torch (stable C ABI)"
    CUDA_DRIVER = "CUDA driver"
    CUDART = "CUDA runtime"
    NVRTC = "NVRTC"
    NVJITLINK = "nvJitLink"
    CUBLAS = "cuBLAS"
    CUDNN = "cuDNN"
    NCCL = "NCCL"
    NVSHMEM = "NVSHMEM"
    CUDA_LIBRARY = "CUDA library"
    TVM_FFI = "tvm-ffi"
    LIBSTDCXX = "libstdc++"
    GLIBC = "glibc"
    CPYTHON = "CPython"
    OTHER = "unknown library"


@dataclass(frozen=True, slots=True)
class OwnerRule:
    """Symbols whose mangled name matches ``pattern`` belong to ``owner``; ``remedy`` is what helps when they are
    missing."""

    owner: Owner
    pattern: re.Pattern[str]
    remedy: str


# Itanium C++ ABI, 5.1: an encoded name begins with _Z, perhaps a special-name or guard prefix, and N for a nested name
# with its qualifiers; the first source name is then the outermost namespace, written with its length.
_CXX = r"_Z(?:GV|GR|T[VISTCHW]|Th?n?\d*_?|St)?(?:N[rVK]*[RO]?)?"

RULES = (
    OwnerRule(
        Owner.TORCH_STABLE,
        re.compile(r"aoti_torch_\w+|torch_(?:library|call_dispatcher|list|string|parse|new|delete|get|set|from)\w*"),
        "install a torch that has this function of its stable C interface: the next minor release or a later one",
    ),
    OwnerRule(
        Owner.TORCH,
        re.compile(rf"{_CXX}(?:3c10|2at|5torch|6caffe2)|(?:_Z\d+)?THP\w+"),
        "install the torch release that this object was built for,"
        " or the build of its distribution made for the torch that is installed",
    ),
    OwnerRule(
        Owner.CUDA_DRIVER,
        re.compile(f"{CUDA_DRIVER_SYMBOL.pattern}|{NVML_SYMBOL.pattern}"),
        "install an NVIDIA driver that is new enough to have this function",
    ),
    OwnerRule(
        Owner.CUDART,
        re.compile(r"(?:__)?cuda[A-Z]\w*"),
        "install the CUDA runtime (libcudart) of the version the object was built with",
    ),
    OwnerRule(
        Owner.NVJITLINK,
        re.compile(r"(?:__)?nvJitLink\w*"),
        "install nvidia-nvjitlink at least as new as the other CUDA libraries,"
        " and keep an older one out of LD_LIBRARY_PATH",
    ),
    OwnerRule(
        Owner.NVRTC, re.compile(r"nvrtc[A-Z]\w*"), "install nvidia-cuda-nvrtc of the version the object was built with"
    ),
    OwnerRule(Owner.CUBLAS, re.compile(r"cublas\w+"), "install nvidia-cublas of the version the object was built with"),
    OwnerRule(
        Owner.CUDNN,
        re.compile(r"cudnn[A-Z]\w*"),
        "install the cuDNN that the installed torch names in its requirements",
    ),
    OwnerRule(
        Owner.NCCL, re.compile(r"p?nccl[A-Z]\w*"), "install the NCCL that the installed torch names in its requirements"
    ),
    OwnerRule(
        Owner.NVSHMEM,
        re.compile(r"nvshmemx?i?_\w+"),
        "install the NVSHMEM that the installed torch names in its requirements",
    ),
    OwnerRule(
        Owner.CUDA_LIBRARY,
        re.compile(r"(?:cufft|curand|cusparse|cusolver|cuFile|cupti|npp|nvjpeg|cutensor)\w*"),
        "install the CUDA toolkit library of the version the object was built with",
    ),
    OwnerRule(
        Owner.TVM_FFI,
        re.compile(rf"TVMFFI\w+|{_CXX}3tvm"),
        "install the apache-tvm-ffi release the object was built for",
    ),
    OwnerRule(
        Owner.CPYTHON,
        PYTHON_SYMBOL,
        "use the Python version that the object's file name or wheel tag names",
    ),
    OwnerRule(
        Owner.LIBSTDCXX,
        re.compile(r"_Z(?:T[VIS]|GV)?(?:N[rVK]*[RO]?)?(?:S[absiod]|St|9__gnu_cxx|10__cxxabiv1)\w*|__cxa_\w+|__gxx_\w+"),
        "install a newer libstdc++ (GCC runtime) on the host, or keep an older copy out of the library path",
    ),
)

_OTHER = OwnerRule(
    Owner.OTHER,
    re.compile(""),
    "find the library that defines this symbol, and install it where the object looks for it",
)
_BY_VERSION = (
    (
        "GLIBCXX_",
        OwnerRule(Owner.LIBSTDCXX, re.compile(""), "use a host whose libstdc++ is new enough, or install a newer one"),
    ),
    (
        "CXXABI_",
        OwnerRule(Owner.LIBSTDCXX, re.compile(""), "use a host whose libstdc++ is new enough, or install a newer one"),
    ),
    (
        "GLIBC_",
        OwnerRule(
            Owner.GLIBC,
            re.compile(""),
            "use a host (or base image) with a newer glibc, or a wheel built for an older one",
        ),
    ),
)


def owner_of(symbol: str, version: str = "") -> OwnerRule:
    """The rule for a mangled symbol (may be "") and the version asked for (may be "")."""
    for prefix, rule in _BY_VERSION:
        if version.startswith(prefix):
            return rule
    for rule in RULES:
        if rule.pattern.match(symbol) and symbol:
            return rule
    return _OTHER


_SOURCE_NAME = re.compile(r"\d+")


def uses_old_string_abi(symbol: str) -> bool:
    """Whether a mangled name has std::string of the pre-C++11 ABI in it (the substitution ``Ss``; GCC manual, "Dual
    ABI")."""
    position, plain = 0, []
    while position < len(symbol):
        match = _SOURCE_NAME.match(symbol, position)
        if match:  # skip <length><identifier>, whose letters may spell Ss by chance
            position = match.end() + int(match.group())
            plain.append(" ")
        else:
            plain.append(symbol[position])
            position += 1
    return symbol.startswith("_Z") and "Ss" in "".join(plain)
