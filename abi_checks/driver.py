"""Libraries that come with the NVIDIA driver of the GPU host, never from a wheel.

Source: NVIDIA driver README, "Installed components". On a host without a driver they can't be found, and that says
nothing of the environment; so they are assumed to be there, with the functions that their API documents.
"""

import re
from collections.abc import Callable

CUDA_DRIVER_SYMBOL = re.compile(r"cu(?!File|pti)[A-Z]\w*")
NVML_SYMBOL = re.compile(r"nvml[A-Z]\w*")

DRIVER_LIBRARIES: dict[str, Callable[[str], object]] = {
    "libcuda.so.1": CUDA_DRIVER_SYMBOL.fullmatch,
    "libcuda.so": CUDA_DRIVER_SYMBOL.fullmatch,
    "libnvidia-ml.so.1": NVML_SYMBOL.fullmatch,
    "libnvcuvid.so.1": re.compile(r"cuvid\w+").fullmatch,
    "libnvidia-encode.so.1": re.compile(r"NvEncodeAPI\w+").fullmatch,
}
"""soname → whether a symbol of that name belongs to the library's API."""

# Where no interpreter of the target's Python is at hand, what belongs to it is assumed in the same way.
PYTHON_LIBRARY = re.compile(r"libpython3\.\d+\.so\.1\.0")
PYTHON_SYMBOL = re.compile("_?Py[A-Z_]")
"""What the names of CPython's symbols begin with."""
