"""Names and attributes of the checked source, followed across its modules and classes."""

from __future__ import annotations

import ast
import builtins
import sys
from abc import abstractmethod
from collections.abc import Mapping, Sequence

from abi_checks.checks.contracts import world
from abi_checks.checks.contracts.classes import ClassIndex, members
from abi_checks.checks.contracts.evaluate import Evaluator, Frame
from abi_checks.checks.contracts.source import SourceModule, SourceTree, imported_names
from abi_checks.checks.contracts.values import (
    ClassRef,
    EnumMember,
    External,
    Function,
    Instance,
    ModuleRef,
    Partial,
    Raised,
    Unknown,
    Value,
    unknown,
)

READ = ("sglang", "sgl_kernel", "flashinfer")
"""Packages whose source is followed. Of torch only ``torch/version.py`` is, for the CUDA version it was built with."""


class Names(Evaluator):
    """Adds modules, classes and objects to the evaluator; calls and statements come with the subclasses."""

    def __init__(self, tree: SourceTree, target: world.Target) -> None:
        super().__init__(tree, target)
        self.classes = ClassIndex(tree, READ)
        self._globals: dict[tuple[str, str], Value] = {}
        self._class_values: dict[tuple[int, str], Value] = {}
        self._module_frames: dict[str, Frame] = {}
        self._lasting: dict[tuple[int, str], Value] = {}

    @abstractmethod
    def run_top_level(self, statements: Sequence[ast.stmt], frame: Frame) -> None:
        """Execute statements of a module or class body."""

    @abstractmethod
    def run_function(self, function: Function, positional: Sequence[Value], named: Mapping[str, Value]) -> Value:
        """Execute a function's body and return its value."""

    def module_frame(self, module: SourceModule) -> Frame:
        """The frame in which a module's top level runs."""
        if module.name not in self._module_frames:
            self._module_frames[module.name] = Frame(self.number(), module)
        return self._module_frames[module.name]

    def global_value(self, module: SourceModule, name: str) -> Value:
        """The value of a name at a module's top level, found by running only the statements that bind it."""
        frame = self.module_frame(module)
        if (frame.number, name) in self.state:
            return self.state[frame.number, name]
        key = (module.name, name)
        if key not in self._globals:
            self._globals[key] = Unknown(f"{name} of {module.name} depends on itself")
            self._globals[key] = self._bind_global(frame, module, name)
        return self._globals[key]

    def _bind_global(self, frame: Frame, module: SourceModule, name: str) -> Value:
        if name in module.bindings:
            if name in module.set_at_run_time:
                return Unknown(f"{name} of {module.path} is set at run time")
            statements = module.bindings[name]
            if len(statements) == 1 and isinstance(statements[0], ast.FunctionDef):
                return Function(module, statements[0])
            outer, self.state = self.state, {}
            try:
                self.run_top_level(statements, frame)
                self._keep(frame)
                return self.state.get((frame.number, name), Unknown(f"{name} is bound on no path of {module.path}"))
            except Raised as error:
                return Unknown(f"importing {module.name} raises {error}")
            finally:
                self.state = outer
        origin, member = self.tree.resolve(module, name)
        if (origin, member) != (module.name, name):
            return self.member(origin, member)
        if hasattr(builtins, name):
            return External(f"builtins.{name}")
        return Unknown(f"{name} is not defined in {module.path}")

    def member(self, origin: str, member: str) -> Value:
        """The value behind ``from origin import member``, or the module itself where member is empty."""
        if origin == "torch" and member == "version":
            origin, member = "torch.version", ""
        if origin.partition(".")[0] not in READ and origin != "torch.version":
            return External(f"{origin}.{member}" if member else origin)
        if not member:
            return ModuleRef(origin)
        module = self.tree.module(origin)
        if module is None:
            return Unknown(f"{origin} has no source that can be read")
        if member in module.bindings or module.star_imports:
            return self.global_value(module, member)
        lazy = module.bindings.get("__getattr__", [None])[-1]
        if isinstance(lazy, ast.FunctionDef):
            key = (module.name, member)
            if key not in self._globals:
                self._globals[key] = self.run_function(Function(module, lazy), (member,), {})
            return self._globals[key]
        if self.tree.has_package(f"{origin}.{member}"):
            return ModuleRef(f"{origin}.{member}")
        return Unknown(f"{member} is not defined in {module.path}")

    def bind_import(self, node: ast.Import | ast.ImportFrom, frame: Frame) -> None:
        """Bind what an import statement imports; a package that is not installed raises ImportError."""
        for name, (origin, member) in imported_names(node, frame.module).items():
            top = origin.partition(".")[0]
            wanted = origin if top in READ else top
            judged = self.tree.is_environment or top in READ
            if judged and top not in sys.stdlib_module_names and not self.tree.has_package(wanted):
                raise Raised("ModuleNotFoundError", f"no module {wanted}", frame.module.place(node))
            self.state[frame.number, name] = self.member(origin, member)

    def attribute(self, owner: Value, name: str, node: ast.AST, frame: Frame) -> Value:
        """The value of ``owner.name``."""
        if isinstance(owner, Instance):
            for known in (self.state, self._lasting):
                if (owner.number, name) in known:
                    return known[owner.number, name]
            return self._bound(owner.cls, name, owner) if owner.cls else Unknown(f".{name} is unknown")
        if isinstance(owner, ModuleRef):
            return self.member(owner.name, name)
        if isinstance(owner, External):
            if owner.name == "torch" and name == "version":
                return ModuleRef("torch.version")
            return world.external_attribute(f"{owner.name}.{name}", self.target)
        if isinstance(owner, EnumMember):
            if name == "name":
                return owner.name
            if name == "value":
                return self.class_value(owner.cls, owner.name)
            return self._bound(owner.cls, name, owner)
        if isinstance(owner, ClassRef):
            if name == "__members__" or name.startswith("__"):
                return Unknown(f"{name} is not evaluated")
            if self.is_enum(owner) and isinstance(members(owner.node).get(name), ast.Assign):
                return EnumMember(owner, name)
            if name == "apply" and "torch.autograd.Function" in self.classes.lineage(owner).outside:
                # torch documents apply() as the call of forward() with a context before the arguments.
                return Partial(self._bound(owner, "forward", None), (Unknown("autograd context"),), ())
            return self._bound(owner, name, None)
        return unknown(f".{name} of something unknown", owner)

    def is_enum(self, cls: ClassRef) -> bool:
        """Whether a class is an enumeration of the standard library's kind."""
        return any(
            base.rpartition(".")[2] in ("Enum", "IntEnum", "StrEnum", "IntFlag", "Flag")
            for base in self.classes.lineage(cls).outside
        )

    def enum_item(self, cls: ClassRef, name: str, node: ast.AST, frame: Frame) -> Value:
        """``cls[name]`` of an enumeration."""
        if not self.is_enum(cls):
            return Unknown(f"{cls.node.name}[{name}] is not evaluated")
        if not isinstance(members(cls.node).get(name), ast.Assign):
            raise Raised("KeyError", repr(name), frame.module.place(node))
        return EnumMember(cls, name)

    def _bound(self, cls: ClassRef, name: str, receiver: Value) -> Value:
        for ancestor in self.classes.lineage(cls).order:
            statement = members(ancestor.node).get(name)
            if statement is None:
                continue
            if not isinstance(statement, ast.FunctionDef):
                return self.class_value(ancestor, name)
            kinds = {decorator_name(d) for d in statement.decorator_list}
            if "staticmethod" in kinds:
                return Function(ancestor.module, statement, owner=ancestor)
            if "classmethod" in kinds:
                return Function(ancestor.module, statement, receiver=cls, owner=ancestor)
            function = Function(ancestor.module, statement, receiver=receiver, owner=ancestor)
            if receiver is not None and kinds & {"property", "cached_property"}:
                return self.run_function(function, (), {})
            return function
        return Unknown(f".{name} is not defined by {cls.node.name} in the source")

    def class_value(self, cls: ClassRef, name: str) -> Value:
        """The value that a class body binds to a name."""
        key = (id(cls.node), name)
        if key not in self._class_values:
            self._class_values[key] = Unknown(f"{name} depends on itself")
            frame = Frame(self.number(), cls.module, owner=cls)
            if name in cls.module.set_at_run_time:
                self._class_values[key] = Unknown(f"{cls.node.name}.{name} is changed at run time")
                return self._class_values[key]
            statement = members(cls.node)[name]
            outer, self.state = self.state, {}
            try:
                if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
                    self._class_values[key] = self.evaluate(statement.value, frame)
                    self._keep(frame)
            except Raised as error:
                self._class_values[key] = Unknown(f"class body raises {error}")
            finally:
                self.state = outer
        return self._class_values[key]

    def _keep(self, frame: Frame) -> None:
        """Objects made at the top level of a module or class keep the attributes that their constructor set."""
        self._lasting.update({key: value for key, value in self.state.items() if key[0] != frame.number})

    def has_attribute(self, owner: Value, name: str) -> bool | None:
        """``hasattr(owner, name)``; None where it is open."""
        if isinstance(owner, External):
            return world.external_has(owner, name)
        if isinstance(owner, Instance):
            if (owner.number, name) in self.state or (owner.number, name) in self._lasting:
                return True
            if owner.cls is None:
                return None
            line = self.classes.lineage(owner.cls)
            if any(name in members(c.node) for c in line.order):
                return True
            return None if line.outside or line.open else False
        return None


def decorator_name(node: ast.expr) -> str:
    """The last name of a decorator, without its arguments."""
    inner = node.func if isinstance(node, ast.Call) else node
    return (
        inner.attr
        if isinstance(inner, ast.Attribute)
        else inner.id
        if isinstance(inner, ast.Name)
        else ast.unparse(inner)
    )
