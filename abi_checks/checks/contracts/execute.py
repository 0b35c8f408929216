"""Statements of the checked source, followed along every path that the known facts leave open.

Where a condition is open, both branches are followed from the same state and the two results joined; a value on which
they differ becomes unknown. A return or raise below an open condition is noted as possible, and the rest of the body is
followed as if it had not happened.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from abi_checks.checks.contracts.evaluate import Frame
from abi_checks.checks.contracts.interpret import Names
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
)
from abi_checks.checks.contracts.world import Target

_MAX_DEPTH = 30
_MAX_STEPS = 200_000
"""Statements after which a walk is given up; a server's whole start takes about a tenth of it."""
_MAX_UNROLL = 64


class _Next(Enum):
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
    """The function in whose effects the caller is interested has been followed."""


class Interpreter(Names):
    """Follows function bodies; nothing of the checked package is ever executed.

    ``writes`` collects assignments to attributes, ``refusals`` the exceptions behind conditions that were decided (also
    where the call that leads there was not certain), ``entered`` the modules whose functions were followed.
    ``stop_after`` names functions after each of which a walk ends with :class:`Enough`.
    """

    def __init__(self, tree: SourceTree, target: Target) -> None:
        super().__init__(tree, target)
        self.writes: list[Write] = []
        self.refusals: list[Raised] = []
        self.entered: dict[str, Place] = {}
        self.stop_after: frozenset[int] = frozenset()
        self.exits: list[list[Exit]] = []
        self._open_conditions = 0
        self._guards: list[Place] = []
        self._decided: list[bool] = []
        self._running: list[int] = []
        self._generators: dict[int, bool] = {}
        self._steps_left = _MAX_STEPS

    def run_top_level(self, statements: Sequence[ast.stmt], frame: Frame) -> None:
        """Execute statements of a module body, away from any open condition of the caller."""
        outer, self._open_conditions = self._open_conditions, 0
        self.exits.append([])
        try:
            self._block(statements, frame)
        finally:
            self.exits.pop()
            self._open_conditions = outer

    def ways_out(
        self, function: Function, positional: Sequence[Value], named: Mapping[str, Value], steps: int = _MAX_STEPS
    ) -> list[Exit]:
        """All ways out of a function; the last is how it ends if no possible exit before is taken.

        Raises :class:`Enough` at the end of a function in ``stop_after``, and after more than ``steps`` statements.
        """
        self._steps_left = steps
        return self._run(function, positional, named)

    def run_function(self, function: Function, positional: Sequence[Value], named: Mapping[str, Value]) -> Value:
        """The value of a call; an exception that is certain goes on to the caller."""
        if len(self._running) >= _MAX_DEPTH or id(function.node) in self._running:
            return Unknown("recursion is not followed")
        if not self._running:
            self._steps_left = _MAX_STEPS
        before = self.state
        try:
            self.last_exits = exits = self._run(function, positional, named)
        except RecursionError:
            self.state = before
            return Unknown("nested too deep to follow")
        last = exits[-1]
        if last.kind == "raise" and last.certain:
            self.state = last.state
            raise last.value
        back = [e for e in exits if e.kind != "raise"]
        if not back:
            self.state = before
            return Unknown("only ever raises")
        value, state = back[0].value, back[0].state
        for other in back[1:]:
            value = self.join(value, other.value)
            state = self._join_states(state, other.state)
        self.state = state
        return value

    def _run(self, function: Function, positional: Sequence[Value], named: Mapping[str, Value]) -> list[Exit]:
        node = function.node
        frame = Frame(self.number(), function.module, function.scope, function.owner)
        self.parents[frame.number] = function.scope
        here = function.module.place(node)
        outer_open, self._open_conditions = self._open_conditions, 0
        outer_guards, self._guards = self._guards, []
        outer_decided, self._decided = self._decided, []
        self._running.append(id(node))
        self.entered.setdefault(function.module.name, here)
        exits: list[Exit] = []
        self.exits.append(exits)
        try:
            self._bind_arguments(function, frame, positional, named)
            if isinstance(node, ast.Lambda):
                value = self.evaluate(node.body, frame)
                exits.append(Exit("return", value, here, True, self.state))
            elif self._is_generator(node):
                exits.append(Exit("return", Unknown("a generator"), here, True, self.state))
            elif self._block(node.body, frame) is not _Next.STOP:
                exits.append(Exit("end", None, function.module.place(node.body[-1]), True, self.state))
        except Raised as error:
            guard = self._guards[-1] if self._guards else None
            # Where the function may have returned before, it may never get here.
            certain = not any(e.kind == "return" and not e.certain for e in exits)
            exits.append(Exit("raise", error, error.place, certain, self.state, guard))
        finally:
            self.exits.pop()
            self._running.pop()
            self._open_conditions, self._guards = outer_open, outer_guards
            self._decided = outer_decided
        if id(node) in self.stop_after and not (exits and exits[-1].kind == "raise" and exits[-1].certain):
            self.state = exits[-1].state if exits else self.state
            raise Enough
        return exits or [Exit("return", Unknown("no way out is followed"), here, False, self.state)]

    def _is_generator(self, node: ast.FunctionDef) -> bool:
        if id(node) not in self._generators:
            self._generators[id(node)] = any(isinstance(n, ast.Yield | ast.YieldFrom) for n in ast.walk(node))
        return self._generators[id(node)]

    def _bind_arguments(
        self, function: Function, frame: Frame, positional: Sequence[Value], named: Mapping[str, Value]
    ) -> None:
        arguments = function.node.args
        names = [a.arg for a in [*arguments.posonlyargs, *arguments.args]]
        given = [function.receiver, *positional] if function.receiver is not None else list(positional)
        home = self.module_frame(function.module)
        values: dict[str, Value] = dict.fromkeys(names, Unknown("argument not given"))
        defaults = arguments.defaults
        for name, default in zip(names[len(names) - len(defaults) :], defaults, strict=True):
            if name not in named and names.index(name) >= len(given):
                values[name] = self.evaluate(default, home)
        for argument, keyword_default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            values[argument.arg] = (
                self.evaluate(keyword_default, home) if keyword_default else Unknown("argument not given")
            )
        values.update(zip(names, given, strict=False))
        extra = {k: v for k, v in named.items() if k not in values}
        values.update({k: v for k, v in named.items() if k in values})
        if arguments.vararg:
            values[arguments.vararg.arg] = tuple(given[len(names) :])
        if arguments.kwarg:
            values[arguments.kwarg.arg] = extra
        self.state.update({(frame.number, name): value for name, value in values.items()})

    def _block(self, statements: Sequence[ast.stmt], frame: Frame) -> _Next:
        for statement in statements:
            self._steps_left -= 1
            if self._steps_left < 0:
                raise Enough
            method = getattr(self, f"_do_{type(statement).__name__.lower()}", None)
            after = method(statement, frame) if method else _Next.GO_ON
            if after is not _Next.GO_ON:
                return _Next(after)
        return _Next.GO_ON

    def _branch(self, statements: Sequence[ast.stmt], frame: Frame) -> _Next:
        """A block below an open condition; an exception in it is only possible."""
        self._open_conditions += 1
        self._decided.append(False)
        try:
            return self._block(statements, frame)
        except Raised as error:
            self.exits[-1].append(Exit("raise", error, error.place, False, self.state))
            return _Next.STOP
        finally:
            self._open_conditions -= 1
            self._decided.pop()

    def _join_states(
        self, left: dict[tuple[int, str], Value], right: dict[tuple[int, str], Value]
    ) -> dict[tuple[int, str], Value]:
        if left is right:
            return left
        result = dict(left)
        for key, value in right.items():
            result[key] = self.join(left[key], value) if key in left else Unknown("bound on one path only")
        for key in left.keys() - right.keys():
            result[key] = Unknown("bound on one path only")
        return result

    def _either(self, first: Sequence[ast.stmt], second: Sequence[ast.stmt], frame: Frame) -> _Next:
        before = dict(self.state)
        one = self._branch(first, frame)
        state_one, self.state = self.state, before
        two = self._branch(second, frame)
        if one is _Next.STOP and two is _Next.STOP:
            return _Next.STOP
        if one is _Next.STOP:
            return _Next.GO_ON
        self.state = state_one if two is _Next.STOP else self._join_states(state_one, self.state)
        return _Next.GO_ON

    def _do_if(self, node: ast.If, frame: Frame) -> _Next:
        known = truth(self.evaluate(node.test, frame))
        if known is None:
            return self._either(node.body, node.orelse, frame)
        self._guards.append(frame.module.place(node.test))
        self._decided.append(True)
        after = self._block(node.body if known else node.orelse, frame)
        self._decided.pop()
        self._guards.pop()
        return after

    def _do_assert(self, node: ast.Assert, frame: Frame) -> _Next:
        if truth(self.evaluate(node.test, frame)) is False:
            message = self.evaluate(node.msg, frame) if node.msg else ast.unparse(node.test)
            refusal = Raised(
                "AssertionError", message if isinstance(message, str) else "", frame.module.place(node), deliberate=True
            )
            self.refusals.append(refusal)
            raise refusal
        return _Next.GO_ON

    def _do_raise(self, node: ast.Raise, frame: Frame) -> _Next:
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

    def _do_return(self, node: ast.Return, frame: Frame) -> _Next:
        value = self.evaluate(node.value, frame) if node.value else None
        guard = self._guards[-1] if self._guards else None
        certain = self._open_conditions == 0
        state = self.state if certain else dict(self.state)
        self.exits[-1].append(Exit("return", value, frame.module.place(node), certain, state, guard))
        return _Next.STOP

    def _do_break(self, node: ast.Break, frame: Frame) -> _Next:
        return _Next.LEAVE_LOOP

    def _do_continue(self, node: ast.Continue, frame: Frame) -> _Next:
        return _Next.NEXT_ROUND

    def _do_expr(self, node: ast.Expr, frame: Frame) -> _Next:
        if isinstance(node.value, ast.Call) and not _is_logging(node.value):
            self.evaluate(node.value, frame)
        return _Next.GO_ON

    def _do_assign(self, node: ast.Assign, frame: Frame) -> _Next:
        value = self.evaluate(node.value, frame)
        for target in node.targets:
            self.assign(target, value, frame)
        return _Next.GO_ON

    def _do_annassign(self, node: ast.AnnAssign, frame: Frame) -> _Next:
        if node.value is not None:
            self.assign(node.target, self.evaluate(node.value, frame), frame)
        return _Next.GO_ON

    def _do_augassign(self, node: ast.AugAssign, frame: Frame) -> _Next:
        self.assign(
            node.target,
            self.binary(node.op, self.evaluate(node.target, frame), self.evaluate(node.value, frame)),
            frame,
        )
        return _Next.GO_ON

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

    def _do_global(self, node: ast.Global, frame: Frame) -> _Next:
        frame.global_names.update(node.names)
        return _Next.GO_ON

    def _do_import(self, node: ast.Import | ast.ImportFrom, frame: Frame) -> _Next:
        self.bind_import(node, frame)
        return _Next.GO_ON

    _do_importfrom = _do_import

    def _do_functiondef(self, node: ast.FunctionDef, frame: Frame) -> _Next:
        scope = frame.number if frame is not self.module_frame(frame.module) else 0
        self.state[frame.number, node.name] = Function(frame.module, node, scope=scope)
        return _Next.GO_ON

    def _do_classdef(self, node: ast.ClassDef, frame: Frame) -> _Next:
        self.state[frame.number, node.name] = ClassRef(frame.module, node)
        return _Next.GO_ON

    def _do_with(self, node: ast.With, frame: Frame) -> _Next:
        for item in node.items:
            value = self.evaluate(item.context_expr, frame)
            if item.optional_vars:
                self.assign(
                    item.optional_vars, Unknown("context manager") if isinstance(value, Unknown) else value, frame
                )
        return self._block(node.body, frame)

    def _do_for(self, node: ast.For, frame: Frame) -> _Next:
        items = self.evaluate(node.iter, frame)
        if isinstance(items, tuple | list | dict) and len(items) <= _MAX_UNROLL:
            for item in items:
                self.assign(node.target, item, frame)
                after = self._block(node.body, frame)
                if after is _Next.STOP:
                    return after
                if after is _Next.LEAVE_LOOP:
                    return _Next.GO_ON
            may_break = any(isinstance(n, ast.Break) for n in ast.walk(node))
            return self._either(node.orelse, [], frame) if may_break else self._block(node.orelse, frame)
        self.assign(node.target, Unknown("an item of something unknown"), frame)
        return self._either([*node.body, *node.orelse], [], frame)

    def _do_while(self, node: ast.While, frame: Frame) -> _Next:
        return self._either(node.body, [], frame)

    def _do_match(self, node: ast.Match, frame: Frame) -> _Next:
        after = _Next.GO_ON
        for case in node.cases:
            after = self._either(case.body, [], frame)
        return after

    def _do_try(self, node: ast.Try, frame: Frame) -> _Next:
        try:
            after = self._block(node.body, frame)
            if after is _Next.GO_ON:
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
        return after if final is _Next.GO_ON else final


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
