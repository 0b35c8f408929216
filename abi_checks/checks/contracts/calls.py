"""Calls in the checked source: of its functions and classes, of Python's own, and of packages that are not followed."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Mapping, Sequence

from abi_checks.checks.contracts import world
from abi_checks.checks.contracts.classes import members
from abi_checks.checks.contracts.evaluate import Frame
from abi_checks.checks.contracts.names import Names, decorator_name
from abi_checks.checks.contracts.operations import builtin
from abi_checks.checks.contracts.source import SourceTree
from abi_checks.checks.contracts.values import (
    ClassRef,
    Construction,
    EnumMember,
    Exit,
    External,
    Function,
    Instance,
    Partial,
    Unknown,
    Value,
    is_concrete,
    same,
)

_TRANSPARENT = frozenset(
    [
        "lru_cache",
        "cache",
        "property",
        "cached_property",
        "staticmethod",
        "classmethod",
        "abstractmethod",
        "wraps",
        "inference_mode",
        "no_grad",
        "override",
        "torch_compile",
        "debug_kernel_api",
        "flashinfer_api",
        "cache_once",
    ]
)
"""Decorators that leave alone what a function returns."""

_IDENTITY = External("identity")
_PLAIN_TYPES = frozenset(
    f"builtins.{name}" for name in ("dict", "list", "tuple", "set", "str", "int", "float", "bool", "bytes")
)


class Calls(Names):
    """Adds calls to the evaluator; statements and function bodies come with the subclasses.

    ``constructed`` collects the objects made, each with the ways out of its constructor.
    """

    def __init__(self, tree: SourceTree, target: world.Target) -> None:
        super().__init__(tree, target)
        self.constructed: list[Construction] = []
        self.last_exits: list[Exit] = []

    def call(
        self, function: Value, positional: Sequence[Value], named: Mapping[str, Value], node: ast.AST, frame: Frame
    ) -> Value:
        """The value of a call."""
        if isinstance(function, Partial):
            return self.call(
                function.target, [*function.positional, *positional], {**dict(function.named), **named}, node, frame
            )
        if isinstance(function, Function):
            if isinstance(function.node, ast.FunctionDef):
                answer = world.probe(function.node.name, self.target)
                if answer is not world.NO_PROBE:
                    return answer
                opaque = [
                    d
                    for d in map(decorator_name, function.node.decorator_list)
                    if d not in _TRANSPARENT and d not in ("setter",)
                ]
                if opaque:
                    return Unknown(f"{function.node.name}() is decorated with {opaque[0]}")
            return self.run_function(function, positional, named)
        if isinstance(function, ClassRef):
            return self._construct(function, positional, named)
        if isinstance(function, External):
            return self._call_external(function, positional, named, frame)
        return Unknown(f"{ast.unparse(node)} is not evaluated") if not isinstance(function, Unknown) else function

    def _construct(self, cls: ClassRef, positional: Sequence[Value], named: Mapping[str, Value]) -> Value:
        if self.is_enum(cls):
            for name, statement in members(cls.node).items():
                if (
                    isinstance(statement, ast.Assign)
                    and positional
                    and same(self.class_value(cls, name), positional[0])
                ):
                    return EnumMember(cls, name)
            return Unknown(f"member of {cls.node.name}")
        instance = Instance(self.number(), cls)
        constructor = self._bound(cls, "__init__", instance)
        if isinstance(constructor, Function):
            self.run_function(constructor, positional, named)
            self.constructed.append(Construction(cls, instance.number, tuple(self.last_exits)))
        else:
            self.state.update({(instance.number, name): value for name, value in named.items()})
        return instance

    def _call_external(
        self, function: External, positional: Sequence[Value], named: Mapping[str, Value], frame: Frame
    ) -> Value:
        name = function.name
        module, _, last = name.rpartition(".")
        if function == _IDENTITY:
            return positional[0] if positional else Unknown()
        if name == "functools.partial" and positional:
            return Partial(positional[0], tuple(positional[1:]), tuple(named.items()))
        if name in ("functools.lru_cache", "functools.cache"):
            return positional[0] if positional and isinstance(positional[0], Function | Partial) else _IDENTITY
        if name == "importlib.util.find_spec" and positional and isinstance(positional[0], str):
            if not self.tree.has_package(positional[0]):
                return None if self.tree.is_environment else Unknown(f"whether {positional[0]} is installed")
            return Instance(self.number())
        if name == "torch.cuda.get_device_properties":
            instance = Instance(self.number())
            self.state.update({(instance.number, k): v for k, v in world.device_properties(self.target).items()})
            return instance
        if name == "importlib.metadata.entry_points":
            group = named.get("group")
            declared = self.tree.has_entry_points(group) if isinstance(group, str) else True
            return Unknown("entry points of installed plugins") if declared else []
        if name == "dataclasses.field":
            factory = named.get("default_factory")
            return (
                self.call(factory, (), {}, ast.Pass(), frame)
                if factory is not None
                else named.get("default", Unknown("field"))
            )
        if module != "builtins":
            return world.external_call(name, positional, self.target)
        if last in ("getattr", "hasattr", "setattr") and len(positional) >= 2:
            return self._reflect(last, positional, frame)
        if last == "isinstance" and len(positional) == 2:
            return self._is_instance(positional[0], positional[1])
        if last == "map" and len(positional) == 2 and isinstance(positional[1], list | tuple):
            return [self.call(positional[0], [item], {}, ast.Pass(), frame) for item in positional[1]]
        return builtin(last, positional, named)

    def _reflect(self, name: str, positional: Sequence[Value], frame: Frame) -> Value:
        owner, attribute = positional[0], positional[1]
        if not isinstance(attribute, str):
            if name == "setattr" and isinstance(owner, Instance):
                for key in [key for key in self.state if key[0] == owner.number]:
                    self.state[key] = Unknown("setattr with a name that is unknown")
            return Unknown(f"{name} with a name that is unknown")
        if name == "setattr":
            if isinstance(owner, Instance):
                self.state[owner.number, attribute] = positional[2]
            return None
        known = self.has_attribute(owner, attribute)
        if name == "hasattr":
            return Unknown(f"hasattr {attribute}") if known is None else known
        if known:
            return self.attribute(owner, attribute, ast.Pass(), frame)
        if known is False and len(positional) == 3:
            return positional[2]
        return Unknown(f"getattr {attribute}")

    def _is_instance(self, value: Value, kind: Value) -> Value:
        if isinstance(kind, tuple):
            answers = [self._is_instance(value, one) for one in kind]
            return (
                True
                if True in answers
                else Unknown("isinstance")
                if any(isinstance(a, Unknown) for a in answers)
                else False
            )
        if isinstance(kind, External) and kind.name.startswith("builtins.") and (value is None or is_concrete(value)):
            builtin_type = getattr(builtins, kind.name.partition(".")[2], None)
            return isinstance(value, builtin_type) if isinstance(builtin_type, type) else Unknown("isinstance")
        if (
            isinstance(kind, External)
            and kind.name in _PLAIN_TYPES
            and isinstance(value, Instance | Function | ClassRef | EnumMember)
        ):
            return False
        if isinstance(kind, ClassRef) and isinstance(value, Instance) and value.cls:
            line = self.classes.lineage(value.cls)
            return any(c.node is kind.node for c in line.order) or (Unknown("isinstance") if line.open else False)
        if isinstance(kind, ClassRef) and isinstance(value, EnumMember):
            return value.cls.node is kind.node
        return Unknown("isinstance")
