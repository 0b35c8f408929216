"""Functions of the checked source: entered with their arguments, and followed to every way out."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from abi_checks.checks.contracts.evaluate import Frame
from abi_checks.checks.contracts.source import Place, SourceTree
from abi_checks.checks.contracts.statements import Enough, Next, Statements
from abi_checks.checks.contracts.values import Exit, Function, Raised, Unknown, Value
from abi_checks.checks.contracts.world import Target

_MAX_DEPTH = 30
_MAX_STEPS = 200_000
"""Statements after which a walk is given up; a server's whole start takes about a tenth of it."""


class Interpreter(Statements):
    """Follows function bodies; nothing of the checked package is ever executed.

    ``entered`` collects the modules whose functions were followed. ``stop_after`` names functions after each of which a
    walk ends with :class:`Enough`.
    """

    def __init__(self, tree: SourceTree, target: Target) -> None:
        super().__init__(tree, target)
        self.entered: dict[str, Place] = {}
        self.stop_after: frozenset[int] = frozenset()
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
            reason = f"{getattr(function.node, 'name', 'a lambda')}() may return before {other.place}"
            value = self.join(value, other.value, reason)
            state = self._join_states(state, other.state, reason)
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
            elif self._block(node.body, frame) is not Next.STOP:
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
