"""Code that reads the server's arguments, and what it makes of an option."""

from __future__ import annotations

import ast
import copy
from contextlib import suppress
from dataclasses import dataclass

from abi_checks.checks.contracts.evaluate import Frame
from abi_checks.checks.contracts.execute import Interpreter
from abi_checks.checks.contracts.source import Place, SourceModule
from abi_checks.checks.contracts.startup import ARGUMENTS, RUNNER, Start, publish_arguments, runner_stub
from abi_checks.checks.contracts.statements import Enough
from abi_checks.checks.contracts.values import (
    ClassRef,
    Function,
    Instance,
    Raised,
    Unknown,
    Value,
    is_concrete,
    truth,
)

_READER_STEPS = 3000
"""Statements for which a function that reads an option is followed in search of exceptions."""


_Read = tuple[ast.FunctionDef, ast.ClassDef | None, ast.expr]


@dataclass(frozen=True, slots=True)
class _Site:
    """A condition that reads an argument."""

    module: SourceModule
    function: ast.FunctionDef
    test: ast.expr
    read: ast.expr


@dataclass(frozen=True, slots=True)
class Use:
    """What the readers of some arguments say.

    ``runner_methods`` are methods of the model runner that read them, ``refusals`` exceptions met only with the option.
    """

    gates: tuple[tuple[Place, str], ...]
    effects: tuple[tuple[Place, tuple[str, ...]], ...]
    readers: tuple[Place, ...]
    runner_methods: frozenset[str]
    refusals: tuple[Raised, ...]


class Readers:
    """Finds and judges the code of a source tree that reads the server's arguments."""

    def __init__(self, interpreter: Interpreter) -> None:
        self.interpreter = interpreter
        self.tree = interpreter.tree
        self._index: dict[str, dict[str, list[_Read]]] = {}

    def uses(self, values: dict[str, tuple[Value, Value]], begun: Start, *, judged: bool) -> Use:
        gates: list[tuple[Place, str]] = []
        effects: list[tuple[Place, tuple[str, ...]]] = []
        readers: list[Place] = []
        methods: set[str] = set()
        refusals: list[Raised] = []
        for argument, pair in sorted(values.items()):
            for path in self.tree.files("sglang.srt", b"." + argument.encode(), b'"' + argument.encode() + b'"'):
                module = self.tree.module_of(path)
                if module is None or module.name == ARGUMENTS[0] or ".arg_groups." in module.name:
                    continue
                for function, owner, node in self.reads(module).get(argument, ()):
                    readers.append(module.place(node))
                    if not judged:
                        continue
                    if module.name == RUNNER[0]:
                        methods.add(function.name)
                        continue
                    refusals.extend(self._refusals(module, function, owner, argument, pair, begun))
                    test = _condition_around(function, node)
                    if test is not None:
                        closed, open_parts = self._evaluate(_Site(module, function, test, node), pair, begun)
                        gates.extend(closed)
                        if open_parts is not None:
                            effects.append((module.place(node), open_parts))
        return Use(tuple(gates), tuple(effects), tuple(readers), frozenset(methods), tuple(refusals))

    def reads(self, module: SourceModule) -> dict[str, list[_Read]]:
        if module.name not in self._index:
            self._index[module.name] = _reads_of_arguments(module)
        return self._index[module.name]

    def _refusals(
        self,
        module: SourceModule,
        function: ast.FunctionDef,
        owner: ast.ClassDef | None,
        argument: str,
        pair: tuple[Value, Value],
        begun: Start,
    ) -> list[Raised]:
        """Exceptions behind conditions that are decided, which following a reader meets only with the option set."""
        seen: list[dict[Place, Raised]] = []
        for value in pair:
            publish_arguments(begun)
            interpreter = self.interpreter
            interpreter.state[begun.arguments.number, argument] = value
            interpreter.refusals.clear()
            receiver = self._receiver(module, owner, begun) if owner else None
            names = [a.arg for a in function.args.args]
            given = {n: begun.arguments for n in names if n == "server_args"}
            # The caller's handlers are not known: what is raised here is what a caller meets.
            with suppress(Enough):
                interpreter.ways_out(Function(module, function, receiver=receiver), (), given, _READER_STEPS)
            seen.append({refusal.place: refusal for refusal in interpreter.refusals})
        return [refusal for place, refusal in seen[0].items() if place not in seen[1]]

    def _receiver(self, module: SourceModule, owner: ast.ClassDef, begun: Start) -> Instance:
        """An object whose way to the server's arguments is the usual one: its own, or its model runner's."""
        receiver = Instance(self.interpreter.number(), ClassRef(module, owner))
        runner = runner_stub(begun)
        state = self.interpreter.state
        state[receiver.number, "server_args"] = begun.arguments
        state[receiver.number, "model_runner"] = runner
        return receiver

    def _evaluate(
        self, site: _Site, pair: tuple[Value, Value], begun: Start
    ) -> tuple[list[tuple[Place, str]], tuple[str, ...] | None]:
        """The parts of a condition that stay false with the option set; or the parts on which its effect depends.

        The second is None where the condition does not hold with the option set.
        """
        publish_arguments(begun)
        parts = (
            site.test.values if isinstance(site.test, ast.BoolOp) and isinstance(site.test.op, ast.And) else [site.test]
        )
        gates: list[tuple[Place, str]] = []
        open_parts: list[str] = []
        holds: list[bool | None] = []
        for part in parts:
            about = any(n is site.read for n in ast.walk(part))
            with_option = self._truth(site, part, pair[0])
            if about:
                holds.append(with_option)
            elif with_option is False:
                gates.append((site.module.place(part), ast.unparse(part)))
            elif with_option is None:
                open_parts.append(ast.unparse(part))
        if gates or False in holds:
            return gates, None
        return [], tuple(open_parts)

    def _truth(self, site: _Site, part: ast.expr, value: Value) -> bool | None:
        interpreter = self.interpreter
        frame = Frame(interpreter.number(), site.module)
        for argument in site.function.args.args:
            interpreter.state[frame.number, argument.arg] = Unknown("an argument of the function")
        known = _Substitute(site.read, value).visit(copy.deepcopy(part)) if is_concrete(value) else part
        try:
            return truth(interpreter.evaluate(known, frame))
        except Raised:
            return None


class _Substitute(ast.NodeTransformer):
    """Puts a value in the place of the expression that reads an argument."""

    def __init__(self, read: ast.expr, value: Value) -> None:
        self.key = (read.lineno, read.col_offset, type(read))
        self.value = value

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.expr) and (node.lineno, node.col_offset, type(node)) == self.key:
            return ast.copy_location(ast.Constant(self.value), node)
        return super().generic_visit(node)


def _reads_of_arguments(module: SourceModule) -> dict[str, list[_Read]]:
    """For each field, the outermost functions, with their class, that read ``X.field`` or ``getattr(X, "field")``.

    X is any expression whose text speaks of ``server_args``.
    """
    found: dict[str, list[_Read]] = {}
    stack: list[tuple[ast.AST, ast.FunctionDef | None, ast.ClassDef | None]] = [(module.tree, None, None)]
    while stack:
        node, function, owner = stack.pop()
        if isinstance(node, ast.FunctionDef):
            function = function or node
        elif isinstance(node, ast.ClassDef):
            owner = node
        if function and isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            if isinstance(node.value, ast.Name | ast.Attribute | ast.Call) and "server_args" in ast.unparse(node.value):
                found.setdefault(node.attr, []).append((function, owner, node))
        elif function and isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
            named = node.args[1] if len(node.args) > 1 else None
            if (
                isinstance(named, ast.Constant)
                and isinstance(named.value, str)
                and "server_args" in ast.unparse(node.args[0])
            ):
                found.setdefault(named.value, []).append((function, owner, node))
        stack.extend((child, function, owner) for child in ast.iter_child_nodes(node))
    for reads in found.values():
        reads.sort(key=lambda read: (read[2].lineno, read[2].col_offset))
    return found


def _condition_around(function: ast.FunctionDef, node: ast.expr) -> ast.expr | None:
    """The outermost condition that a node is part of: a test, or a boolean expression that is returned."""
    for statement in ast.walk(function):
        test = statement.test if isinstance(statement, ast.If | ast.IfExp | ast.While) else None
        if isinstance(statement, ast.Return | ast.Assign) and isinstance(statement.value, ast.BoolOp | ast.Compare):
            test = statement.value
        if test is not None and any(n is node for n in ast.walk(test)):
            return test
    return None
