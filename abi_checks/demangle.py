"""C++ names for people, by the C++ runtime's own demangler."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache


@lru_cache(maxsize=1)
def _demangler() -> Callable[[str], str]:
    """``__cxa_demangle`` of libstdc++ or libc++abi (Itanium C++ ABI, 3.4); the identity where the host has neither."""
    for library in ("libstdc++.so.6", "libc++abi.so.1"):
        try:
            function = ctypes.CDLL(library).__cxa_demangle
        except (OSError, AttributeError):
            continue
        function.restype = ctypes.c_void_p
        function.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]
        free = ctypes.CDLL(None).free
        free.argtypes = [ctypes.c_void_p]

        def demangle(
            name: str, function: Callable[..., int | None] = function, free: Callable[..., None] = free
        ) -> str:
            status = ctypes.c_int()
            address = function(name.encode(), None, None, ctypes.byref(status))
            if not address:
                return name
            try:
                return ctypes.string_at(address).decode("utf-8", "replace")
            finally:
                free(address)

        return demangle
    return lambda name: name


@lru_cache(maxsize=65536)
def demangle(name: str) -> str:
    """The name as written in C++; unchanged where it isn't a mangled name."""
    if not name.startswith("_Z"):
        return name
    return _demangler()(name).replace(
        "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >", "std::string"
    )
