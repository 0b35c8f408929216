"""Statements of the checked source, followed along every path that the known facts leave open.

Where a condition is open, both branches are followed from the same state and the two results joined; a value on which
they differ becomes unknown. A return or raise below an open condition is noted as possible, and the rest of the body is
followed as if it had not happened.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from abi_checks.checks.contracts.calls import Calls
from abi_checks.checks.contracts.evaluate import Frame, open_condition
from abi_checks.checks.contracts.source import Place, SourceTree
from abi_checks.checks.contracts.values import (
    ClassRef,
    Exit,
    Function,
    Instance,
    Raised,
    Unknown,
    Value,
    truth,
    unknown,
)
from abi_checks.checks.contracts.world import Target

_MAX_UNROLL = 64
"""Items up to which a loop is followed round by round."""


class Next(Enum):
    """Where the walk goes after a statement."""

    GO_ON = auto()
    STOP = auto()
    LEAVE_LOOP = auto()
    NEXT_ROUND = auto()


@dataclass(frozen=True, slots=True)
class Write:
    """An assignment to an attribute of an object."""

    owner: int
    name: str
    value: Value
    place: Place
    certain: bool


class Enough(Exception):
    """A walk ends before its function does: all that was asked for has been followed, or too much."""


class Statements(Calls):
    """Follows the statements of a body; how functions are entered and left comes with the subclass.

    ``writes`` collects assignments to attributes, ``refusals`` the exceptions behind conditions that were decided (also
    where the call that leads there was not certain), ``exits`` the ways out of each function that is being followed.
    """

    def __init__(self, tree: SourceTree, target: Target) -> None:
        super().__init__(tree, target)
        self.writes: list[Write] = []
        self.refusals: list[Raised] = []
        self.exits: list[list[Exit]] = []
        self._open_conditions = 0
        self._guards: list[Place] = []
        self._decided: list[bool] = []
        self._steps_left = 0

    def _block(self, statements: Sequence[ast.stmt], frame: Frame) -> Next:
        for statement in statements:
            self._steps_left -= 1
            if self._steps_left < 0:
                raise Enough
            method = getattr(self, f"_do_{type(statement).__name__.lower()}", None)
            after = method(statement, frame) if method else Next.GO_ON
            if after is not Next.GO_ON:
                return Next(after)
        return Next.GO_ON

    def _branch(self, statements: Sequence[ast.stmt], frame: Frame) -> Next:
        """A block below an open condition; an exception in it is only possible."""
        self._open_conditions += 1
        self._decided.append(False)
        try:
            return self._block(statements, frame)
        except Raised as error:
            self.exits[-1].append(Exit("raise", error, error.place, False, self.state))
            return Next.STOP
        finally:
            self._open_conditions -= 1
            self._decided.pop()

    def _join_states(
        self, left: dict[tuple[int, str], Value], right: dict[tuple[int, str], Value], reason: str
    ) -> dict[tuple[int, str], Value]:
        if left is right:
            return left
        result = dict(left)
        for key, value in right.items():
            result[key] = self.join(left[key], value, reason) if key in left else Unknown("bound on one path only")
        for key in left.keys() - right.keys():
            result[key] = Unknown("bound on one path only")
        return result

    def _either(self, first: Sequence[ast.stmt], second: Sequence[ast.stmt], frame: Frame, reason: str) -> Next:
        """Follow both; ``reason`` is why it is open which of them runs."""
        before = dict(self.state)
        one = self._branch(first, frame)
        state_one, self.state = self.state, before
        two = self._branch(second, frame)
        if one is Next.STOP and two is Next.STOP:
            return Next.STOP
        if one is Next.STOP:
            return Next.GO_ON
        self.state = state_one if two is Next.STOP else self._join_states(state_one, self.state, reason)
        return Next.GO_ON

    def _do_if(self, node: ast.If, frame: Frame) -> Next:
        test = self.evaluate(node.test, frame)
        known = truth(test)
        if known is None:
            return self._either(node.body, node.orelse, frame, open_condition(node.test, test, frame))
        self._guards.append(frame.module.place(node.test))
        self._decided.append(True)
        after = self._block(node.body if known else node.orelse, frame)
        self._decided.pop()
        self._guards.pop()
        return after

    def _do_assert(self, node: ast.Assert, frame: Frame) -> Next:
        if truth(self.evaluate(node.test, frame)) is False:
            message = self.evaluate(node.msg, frame) if node.msg else ast.unparse(node.test)
            refusal = Raised(
                "AssertionError", message if isinstance(message, str) else "", frame.module.place(node), deliberate=True
            )
            self.refusals.append(refusal)
            raise refusal
        return Next.GO_ON

    def _do_raise(self, node: ast.Raise, frame: Frame) -> Next:
        call = node.exc
        kind, message = "Exception", ""
        if isinstance(call, ast.Call):
            kind = ast.unparse(call.func)
            if call.args and isinstance(call.args[0], ast.Constant | ast.JoinedStr):
                value = self.evaluate(call.args[0], frame)
                message = (
                    value if isinstance(value, str) else value.reason if isinstance(value, Unknown) else str(value)
                )
        elif call is not None:
            kind = ast.unparse(call)
        refusal = Raised(kind, message, frame.module.place(node), deliberate=True)
        if self._decided and self._decided[-1]:
            self.refusals.append(refusal)
        raise refusal

    def _do_return(self, node: ast.Return, frame: Frame) -> Next:
        value = self.evaluate(node.value, frame) if node.value else None
        guard = self._guards[-1] if self._guards else None
        certain = self._open_conditions == 0
        state = self.state if certain else dict(self.state)
        self.exits[-1].append(Exit("return", value, frame.module.place(node), certain, state, guard))
        return Next.STOP

    def _do_break(self, node: ast.Break, frame: Frame) -> Next:
        return Next.LEAVE_LOOP

    def _do_continue(self, node: ast.Continue, frame: Frame) -> Next:
        return Next.NEXT_ROUND

    def _do_expr(self, node: ast.Expr, frame: Frame) -> Next:
        if isinstance(node.value, ast.Call) and not _is_logging(node.value):
            self.evaluate(node.value, frame)
        return Next.GO_ON

    def _do_assign(self, node: ast.Assign, frame: Frame) -> Next:
        value = self.evaluate(node.value, frame)
        for target in node.targets:
            self.assign(target, value, frame)
        return Next.GO_ON

    def _do_annassign(self, node: ast.AnnAssign, frame: Frame) -> Next:
        if node.value is not None:
            self.assign(node.target, self.evaluate(node.value, frame), frame)
        return Next.GO_ON

    def _do_augassign(self, node: ast.AugAssign, frame: Frame) -> Next:
        self.assign(
            node.target,
            self.binary(node.op, self.evaluate(node.target, frame), self.evaluate(node.value, frame)),
            frame,
        )
        return Next.GO_ON

    def assign(self, target: ast.expr, value: Value, frame: Frame) -> None:
        """Bind a value to a target; targets that cannot be followed are left alone."""
        if isinstance(target, ast.Name):
            home = self.module_frame(frame.module) if target.id in frame.global_names else frame
            self.state[home.number, target.id] = value
        elif isinstance(target, ast.Attribute):
            owner = self.evaluate(target.value, frame)
            if isinstance(owner, Instance):
                self.state[owner.number, target.attr] = value
                certain = self._open_conditions == 0
                self.writes.append(Write(owner.number, target.attr, value, frame.module.place(target), certain))
        elif isinstance(target, ast.Subscript):
            container = self.evaluate(target.value, frame)
            if isinstance(container, dict | list):
                self.assign(target.value, Unknown("an item was assigned"), frame)
        elif isinstance(target, ast.Tuple | ast.List):
            parts = value if isinstance(value, tuple | list) and len(value) == len(target.elts) else None
            for index, element in enumerate(target.elts):
                inner = element.value if isinstance(element, ast.Starred) else element
                self.assign(inner, parts[index] if parts is not None else Unknown("unpacked"), frame)

    def _do_global(self, node: ast.Global, frame: Frame) -> Next:
        frame.global_names.update(node.names)
        return Next.GO_ON

    def _do_import(self, node: ast.Import | ast.ImportFrom, frame: Frame) -> Next:
        self.bind_import(node, frame)
        return Next.GO_ON

    _do_importfrom = _do_import

    def _do_functiondef(self, node: ast.FunctionDef, frame: Frame) -> Next:
        scope = frame.number if frame is not self.module_frame(frame.module) else 0
        self.state[frame.number, node.name] = Function(frame.module, node, scope=scope)
        return Next.GO_ON

    def _do_classdef(self, node: ast.ClassDef, frame: Frame) -> Next:
        self.state[frame.number, node.name] = ClassRef(frame.module, node)
        return Next.GO_ON

    def _do_with(self, node: ast.With, frame: Frame) -> Next:
        for item in node.items:
            value = self.evaluate(item.context_expr, frame)
            if item.optional_vars:
                self.assign(
                    item.optional_vars, Unknown("context manager") if isinstance(value, Unknown) else value, frame
                )
        return self._block(node.body, frame)

    def _do_for(self, node: ast.For, frame: Frame) -> Next:
        items = self.evaluate(node.iter, frame)
        if isinstance(items, tuple | list | dict) and len(items) <= _MAX_UNROLL:
            for item in items:
                self.assign(node.target, item, frame)
                after = self._block(node.body, frame)
                if after is Next.STOP:
                    return after
                if after is Next.LEAVE_LOOP:
                    return Next.GO_ON
            may_break = any(isinstance(n, ast.Break) for n in ast.walk(node))
            if not may_break:
                return self._block(node.orelse, frame)
            return self._either(node.orelse, [], frame, f"a loop may end early ({frame.module.place(node)})")
        self.assign(node.target, unknown("an item of something unknown", items), frame)
        return self._either([*node.body, *node.orelse], [], frame, open_condition(node.iter, items, frame))

    def _do_while(self, node: ast.While, frame: Frame) -> Next:
        return self._either(node.body, [], frame, open_condition(node.test, Unknown(), frame))

    def _do_match(self, node: ast.Match, frame: Frame) -> Next:
        after = Next.GO_ON
        reason = open_condition(node.subject, Unknown(), frame)
        for case in node.cases:
            after = self._either(case.body, [], frame, reason)
        return after

    def _do_try(self, node: ast.Try, frame: Frame) -> Next:
        try:
            after = self._block(node.body, frame)
            if after is Next.GO_ON:
                after = self._block(node.orelse, frame)
        except Raised as error:
            handler = next((h for h in node.handlers if _catches(h, error.kind)), None)
            if handler is None:
                self._block(node.finalbody, frame)
                raise
            if handler.name:
                self.state[frame.number, handler.name] = Unknown(str(error))
            after = self._block(handler.body, frame)
        final = self._block(node.finalbody, frame)
        return after if final is Next.GO_ON else final


def _is_logging(node: ast.Call) -> bool:
    function = node.func
    return (
        isinstance(function, ast.Attribute)
        and isinstance(function.value, ast.Name)
        and function.value.id in ("logger", "logging", "warnings")
    )


def _catches(handler: ast.ExceptHandler, kind: str) -> bool:
    if handler.type is None:
        return True
    names = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    raised = getattr(builtins, kind.rpartition(".")[2], None)
    for name in names:
        text = ast.unparse(name)
        caught = getattr(builtins, text, None)
        if text in ("Exception", "BaseException") or text == kind:
            return True
        if isinstance(raised, type) and isinstance(caught, type) and issubclass(raised, caught):
            return True
    return False
