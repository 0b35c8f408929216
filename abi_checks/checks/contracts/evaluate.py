"""Expressions of the checked source, evaluated as far as source and facts allow (three-valued logic)."""

from __future__ import annotations

import ast
import operator
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from abi_checks.checks.contracts import world
from abi_checks.checks.contracts.operations import method_of_constant
from abi_checks.checks.contracts.source import SourceModule, SourceTree
from abi_checks.checks.contracts.values import (
    CONTAINERS,
    OPEN,
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
    contains,
    is_concrete,
    same,
    truth,
    unknown,
)

_ARITHMETIC: dict[type[ast.operator], Callable[[Value, Value], Value]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
}
_ORDER: dict[type[ast.cmpop], Callable[[Value, Value], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_LONGEST_CONDITION = 80
_MAX_SIZE = 4096
"""Containers and numbers beyond this are not worth following."""


@dataclass(eq=False)
class Frame:
    """One activation of a function, or a module's top level."""

    number: int
    module: SourceModule
    parent: int = 0
    owner: ClassRef | None = None
    global_names: set[str] = field(default_factory=set)


class Evaluator:
    """Evaluates expressions against a state; calls and statements are the business of the subclass."""

    def __init__(self, tree: SourceTree, target: world.Target) -> None:
        self.tree = tree
        self.target = target
        self.state: dict[tuple[int, str], Value] = {}
        self.parents: dict[int, int] = {0: 0}
        self.counter = 0

    @abstractmethod
    def call(
        self, function: Value, positional: Sequence[Value], named: Mapping[str, Value], node: ast.AST, frame: Frame
    ) -> Value:
        """The value of a call."""

    @abstractmethod
    def global_value(self, module: SourceModule, name: str) -> Value:
        """The value of a name at a module's top level."""

    @abstractmethod
    def attribute(self, owner: Value, name: str, node: ast.AST, frame: Frame) -> Value:
        """The value of ``owner.name``."""

    @abstractmethod
    def enum_item(self, cls: ClassRef, name: str, node: ast.AST, frame: Frame) -> Value:
        """``cls[name]`` of an enumeration."""

    def number(self) -> int:
        """A fresh number for a frame or an instance."""
        self.counter += 1
        return self.counter

    def evaluate(self, node: ast.expr, frame: Frame) -> Value:
        """The value of an expression; raises :class:`Raised` where it certainly raises."""
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        return method(node, frame) if method else Unknown(f"{type(node).__name__} is not evaluated")

    def _constant(self, node: ast.Constant, frame: Frame) -> Value:
        return node.value

    def _name(self, node: ast.Name, frame: Frame) -> Value:
        number = frame.number
        while number and node.id not in frame.global_names:
            if (number, node.id) in self.state:
                return self.state[number, node.id]
            number = self.parents.get(number, 0)
        return self.global_value(frame.module, node.id)

    def _attribute(self, node: ast.Attribute, frame: Frame) -> Value:
        return self.attribute(self.evaluate(node.value, frame), node.attr, node, frame)

    def _starred(self, node: ast.Starred, frame: Frame) -> Value:
        return self.evaluate(node.value, frame)

    def _sequence(self, nodes: Sequence[ast.expr], frame: Frame) -> list[Value] | None:
        values: list[Value] = []
        for node in nodes:
            value = self.evaluate(node, frame)
            if not isinstance(node, ast.Starred):
                values.append(value)
            elif isinstance(value, tuple | list):
                values.extend(value)
            else:
                return None
        return values

    def _tuple(self, node: ast.Tuple, frame: Frame) -> Value:
        values = self._sequence(node.elts, frame)
        return Unknown("unpacks something unknown") if values is None else tuple(values)

    def _list(self, node: ast.List, frame: Frame) -> Value:
        values = self._sequence(node.elts, frame)
        return Unknown("unpacks something unknown") if values is None else values

    def _set(self, node: ast.Set, frame: Frame) -> Value:
        # Kept as a tuple: members may be unknown, and only membership is ever asked.
        values = self._sequence(node.elts, frame)
        return Unknown("unpacks something unknown") if values is None else tuple(values)

    def _dict(self, node: ast.Dict, frame: Frame) -> Value:
        result: dict[Value, Value] = {}
        for key_node, value_node in zip(node.keys, node.values, strict=True):
            value = self.evaluate(value_node, frame)
            if key_node is None:
                if not isinstance(value, dict):
                    return Unknown("unpacks something unknown")
                result.update(value)
                continue
            key = self.evaluate(key_node, frame)
            if not (is_concrete(key) and not isinstance(key, list | dict | set)) and not isinstance(key, EnumMember):
                return Unknown("a key of the dictionary is unknown")
            result[key] = value
        return result

    def _boolop(self, node: ast.BoolOp, frame: Frame) -> Value:
        deciding = isinstance(node.op, ast.Or)
        value: Value = None
        open_question: Unknown | None = None
        for operand in node.values:
            value = self.evaluate(operand, frame)
            known = truth(value)
            if known is deciding:
                # `unknown and False` is false, whatever the unknown is; only its truth is then known.
                return value if open_question is None or not deciding else True
            if known is None:
                open_question = open_question or (
                    value if isinstance(value, Unknown) else Unknown(ast.unparse(operand))
                )
        return value if open_question is None else open_question

    def _unaryop(self, node: ast.UnaryOp, frame: Frame) -> Value:
        value = self.evaluate(node.operand, frame)
        if isinstance(node.op, ast.Not):
            known = truth(value)
            return unknown(ast.unparse(node.operand), value) if known is None else not known
        if isinstance(value, int | float):
            return -value if isinstance(node.op, ast.USub) else +value if isinstance(node.op, ast.UAdd) else Unknown()
        return Unknown()

    def binary(self, op: ast.operator, left: Value, right: Value) -> Value:
        """The value of an arithmetic operation."""
        if not (is_concrete(left) and is_concrete(right)) or type(op) not in _ARITHMETIC:
            return unknown("operands are unknown", left, right)
        if isinstance(op, ast.Pow | ast.LShift | ast.Mult) and any(
            isinstance(v, int) and abs(v) > 2**40 for v in (left, right)
        ):
            return Unknown("too large to follow")
        if isinstance(op, ast.Pow | ast.LShift) and isinstance(right, int) and right > 64:
            return Unknown("too large to follow")
        try:
            result = _ARITHMETIC[type(op)](left, right)
        except (TypeError, ValueError, ArithmeticError):
            return Unknown("the operation fails")
        return (
            Unknown("too large to follow")
            if isinstance(result, (str, *CONTAINERS)) and len(result) > _MAX_SIZE
            else result
        )

    def _binop(self, node: ast.BinOp, frame: Frame) -> Value:
        return self.binary(node.op, self.evaluate(node.left, frame), self.evaluate(node.right, frame))

    def _compare(self, node: ast.Compare, frame: Frame) -> Value:
        left = self.evaluate(node.left, frame)
        operands = [left]
        answer: bool | None = True
        for op, right_node in zip(node.ops, node.comparators, strict=True):
            right = self.evaluate(right_node, frame)
            operands.append(right)
            one = self.compare(op, left, right)
            if one is False:
                return False
            answer = None if one is None else answer
            left = right
        return unknown(ast.unparse(node), *operands) if answer is None else answer

    def compare(self, op: ast.cmpop, left: Value, right: Value) -> bool | None:
        """The truth of one comparison; None where it is open."""
        answer: bool | None
        if isinstance(op, ast.Is | ast.IsNot):
            objects = (Function, ClassRef, ModuleRef, Instance, Partial, EnumMember)
            if isinstance(left, Unknown | External) or isinstance(right, Unknown | External):
                answer = None
            elif left is None or right is None or isinstance(left, objects) or isinstance(right, objects):
                answer = left is right or (isinstance(left, objects) and left == right)
            else:
                answer = same(left, right)
            return None if answer is None else answer is isinstance(op, ast.Is)
        if isinstance(op, ast.In | ast.NotIn):
            answer = contains(right, left)
            return None if answer is None else answer is isinstance(op, ast.In)
        if isinstance(op, ast.Eq | ast.NotEq):
            answer = same(left, right)
            return None if answer is None else answer is isinstance(op, ast.Eq)
        if is_concrete(left) and is_concrete(right):
            try:
                return _ORDER[type(op)](left, right)
            except TypeError:
                return None
        return None

    def _ifexp(self, node: ast.IfExp, frame: Frame) -> Value:
        test = self.evaluate(node.test, frame)
        known = truth(test)
        if known is not None:
            return self.evaluate(node.body if known else node.orelse, frame)
        reason = open_condition(node.test, test, frame)
        return self.join(self.evaluate(node.body, frame), self.evaluate(node.orelse, frame), reason)

    def _namedexpr(self, node: ast.NamedExpr, frame: Frame) -> Value:
        value = self.evaluate(node.value, frame)
        self.state[frame.number, node.target.id] = value
        return value

    def _joinedstr(self, node: ast.JoinedStr, frame: Frame) -> Value:
        parts = []
        for part in node.values:
            value = (
                self.evaluate(part.value, frame) if isinstance(part, ast.FormattedValue) else getattr(part, "value", "")
            )
            parts.append(str(value) if is_concrete(value) else "?")
        return "".join(parts) if "?" not in parts else Unknown("".join(parts))

    def _lambda(self, node: ast.Lambda, frame: Frame) -> Value:
        return Function(frame.module, node, scope=frame.number)

    def _subscript(self, node: ast.Subscript, frame: Frame) -> Value:
        owner = self.evaluate(node.value, frame)
        if isinstance(node.slice, ast.Slice):
            bounds = [
                self.evaluate(b, frame) if b else None for b in (node.slice.lower, node.slice.upper, node.slice.step)
            ]
            if isinstance(owner, str | tuple | list) and all(b is None or isinstance(b, int) for b in bounds):
                return owner[slice(*bounds)]
            return Unknown()
        key = self.evaluate(node.slice, frame)
        if isinstance(owner, ClassRef) and isinstance(key, str):
            return self.enum_item(owner, key, node, frame)
        if isinstance(owner, dict):
            if not (is_concrete(key) or isinstance(key, EnumMember)) or isinstance(key, list | dict):
                return Unknown(f"{ast.unparse(node.slice)} is unknown")
            if key not in owner:
                raise Raised("KeyError", repr(key), frame.module.place(node))
            return owner[key]
        if isinstance(owner, str | tuple | list) and isinstance(key, int):
            if not -len(owner) <= key < len(owner):
                raise Raised("IndexError", repr(key), frame.module.place(node))
            return owner[key]
        return Unknown(f"{ast.unparse(node)} is unknown")

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp, frame: Frame) -> Value:
        if len(node.generators) != 1 or not isinstance(node.generators[0].target, ast.Name):
            return Unknown("comprehension")
        generator = node.generators[0]
        items = self.evaluate(generator.iter, frame)
        if not isinstance(items, tuple | list | dict) or len(items) > _MAX_SIZE:
            return Unknown(f"{ast.unparse(generator.iter)} is unknown")
        inner = Frame(self.number(), frame.module, frame.number, frame.owner, frame.global_names)
        self.parents[inner.number] = frame.number
        values = []
        for item in items:
            self.state[inner.number, node.generators[0].target.id] = item
            tests = [truth(self.evaluate(test, inner)) for test in generator.ifs]
            if False in tests:
                continue
            if None in tests:
                return Unknown("a condition of the comprehension is unknown")
            values.append(self.evaluate(node.elt, inner))
        return values

    _listcomp = _setcomp = _generatorexp = _comprehension

    def _call(self, node: ast.Call, frame: Frame) -> Value:
        positional = self._sequence(node.args, frame)
        named: dict[str, Value] = {}
        complete = positional is not None
        for keyword in node.keywords:
            value = self.evaluate(keyword.value, frame)
            if keyword.arg is not None:
                named[keyword.arg] = value
            elif isinstance(value, dict) and all(isinstance(k, str) for k in value):
                named.update(value)
            else:
                complete = False
        if isinstance(node.func, ast.Attribute):
            owner = self.evaluate(node.func.value, frame)
            if isinstance(owner, (str, *CONTAINERS)):
                return self._constant_method(node, node.func, owner, positional or [], named, frame)
            function = self.attribute(owner, node.func.attr, node.func, frame)
        else:
            function = self.evaluate(node.func, frame)
        return self.call(function, positional or [], named, node, frame) if complete else Unknown("unknown arguments")

    def _constant_method(
        self,
        node: ast.Call,
        func: ast.Attribute,
        owner: Value,
        positional: list[Value],
        named: dict[str, Value],
        frame: Frame,
    ) -> Value:
        result = method_of_constant(owner, func.attr, positional, named)
        if result is not None:
            return result[0]
        if isinstance(owner, list) and func.attr in ("append", "extend") and len(positional) == 1 and not named:
            added = [positional[0]] if func.attr == "append" else positional[0]
            if isinstance(added, list | tuple) and len(owner) < _MAX_SIZE:
                self.assign(func.value, [*owner, *added], frame)
                return None
        # Any other method that changes its object: from here on the object is unknown.
        self.assign(func.value, Unknown(f"changed by {ast.unparse(func)}()"), frame)
        return Unknown(f"{ast.unparse(func)}() is not evaluated")

    @abstractmethod
    def assign(self, target: ast.expr, value: Value, frame: Frame) -> None:
        """Bind a value to a target; targets that cannot be followed are left alone."""

    @staticmethod
    def join(left: Value, right: Value, reason: str) -> Value:
        """The one value that stands for either of two; ``reason`` is why it is open which."""
        if left is right or (type(left) is type(right) and left == right):
            return left
        return Unknown(reason)


def open_condition(test: ast.expr, value: Value, frame: Frame) -> str:
    """Why a value is unknown that differs with a condition: the first condition that is open, and why it is."""
    text = ast.unparse(test)
    text = text if len(text) <= _LONGEST_CONDITION else text[:_LONGEST_CONDITION] + "…"
    why = f": {value.reason}" if isinstance(value, Unknown) and value.reason else ""
    return unknown(f"{OPEN}{text} ({frame.module.place(test)}){why}", value).reason
