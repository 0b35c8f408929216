"""Run by an environment's own interpreter: import each model class and print which of the named methods it has.

Arguments: method names. Prints a JSON object after ``RESULT``: class name → list of methods, or module name → the text
of the exception. sgl_kernel is stood in for, because it cannot be imported on a host without a driver.
"""

import importlib
import importlib.abc
import importlib.machinery
import json
import pkgutil
import sys
import types
from collections.abc import Sequence
from unittest.mock import MagicMock


class StandIn(types.ModuleType):
    """A module that has every name."""

    __path__: list[str] = []  # noqa: RUF012 - the import system reads it

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock()


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a stand-in for sgl_kernel and everything below it."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] == "sgl_kernel":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


sys.meta_path.insert(0, Finder())
models = importlib.import_module("sglang.srt.models")
found: dict[str, object] = {}
for _, name, is_package in pkgutil.iter_modules(models.__path__, models.__name__ + "."):
    if is_package:
        continue
    try:
        module = importlib.import_module(name)
    except BaseException as error:
        found[name] = f"{type(error).__name__}: {error}"[:200]
        continue
    entry = getattr(module, "EntryClass", [])
    for cls in entry if isinstance(entry, list) else [entry]:
        found[cls.__name__] = [m for m in sys.argv[1:] if callable(getattr(cls, m, None))]
print("RESULT" + json.dumps(found))
