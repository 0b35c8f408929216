"""What speculative decoding calls on a target and on a draft model, read from SGLang's source.

The workers are those that the source's own ``SpeculativeAlgorithm.create_worker`` can return for EAGLE and EAGLE-3,
together with the helper classes of their modules; the model runner and its graph runners count where the call stands
under a condition about EAGLE. A model is reached as ``RUNNER.model``, through a local name bound to that, or as a
parameter of a function that is called with one of these.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import TypeGuard

from abi_checks.checks.contracts.evaluate import Frame
from abi_checks.checks.contracts.execute import Interpreter
from abi_checks.checks.contracts.source import Place, SourceModule, SourceTree, imported_names
from abi_checks.checks.contracts.values import ClassRef, EnumMember, Function, Instance, Raised, truth
from abi_checks.checks.contracts.world import Target

ALGORITHMS = ("sglang.srt.speculative.spec_info", "SpeculativeAlgorithm")
_RUNNER_FOLDER = "sglang.srt.model_executor"
_OF_EVERY_MODULE = frozenset(
    ["eval", "train", "to", "parameters", "named_parameters", "state_dict", "modules", "named_modules", "__class__"]
)


@dataclass(frozen=True, slots=True)
class Requirement:
    """One use of a model: a method that is called, or an attribute that is read.

    ``conditions`` are the open conditions under which the use happens; none means always.
    """

    algorithm: str
    role: str
    name: str
    is_call: bool
    positional: int
    keywords: tuple[str, ...]
    conditions: tuple[str, ...]
    place: Place


@dataclass(frozen=True, slots=True)
class Contract:
    """All uses of target and draft models, and why the list may be incomplete.

    A class is judged by :meth:`methods`: what EAGLE-3 calls on every target, and what EAGLE calls on every draft (for a
    model that brings its own draft layers the draft is of the target's kind). Calls that depend on the draft's own
    settings, and attributes that only EAGLE-3 drafts have, are listed but ask nothing of a class.
    """

    workers: tuple[str, ...]
    requirements: tuple[Requirement, ...]
    gaps: tuple[str, ...]

    def methods(self) -> dict[str, list[Requirement]]:
        """The methods that are called unconditionally, each with its uses, in alphabetical order."""
        found: dict[str, list[Requirement]] = {}
        for requirement in self.requirements:
            if requirement.is_call and not requirement.conditions:
                found.setdefault(requirement.name, []).append(requirement)
        return dict(sorted(found.items()))

    def roles(self, name: str) -> tuple[str, ...]:
        """The roles in which a method is called unconditionally."""
        return tuple(sorted({r.role for r in self.methods().get(name, ())}))


def read_contract(tree: SourceTree) -> Contract:
    """Read the EAGLE-3 contract from an SGLang source tree."""
    interpreter = Interpreter(tree, Target(9, 0))
    algorithms = interpreter.member(*ALGORITHMS)
    if not isinstance(algorithms, ClassRef):
        return Contract((), (), (f"{'.'.join(ALGORITHMS)} is not in the source",))
    requirements: list[Requirement] = []
    gaps: tuple[str, ...] = ()
    names: list[str] = []
    for algorithm in ("EAGLE", "EAGLE3"):
        member = EnumMember(algorithms, algorithm)
        workers, missed = _workers(interpreter, member)
        gaps += missed
        names.extend(f"{w.node.name} ({w.module.place(w.node)})" for w in workers)
        for module in _worker_modules(interpreter, workers):
            requirements.extend(_uses(interpreter, member, module, in_worker=True))
    for path in tree.files(_RUNNER_FOLDER, b"eagle"):
        runner_module = tree.module_of(path)
        if runner_module and re.search(rb"\.model\b", tree.read(path)):
            requirements.extend(_uses(interpreter, EnumMember(algorithms, "EAGLE3"), runner_module, in_worker=False))
    if not any(r.role == "target" for r in requirements):
        gaps += ("no use of a target model is found in the source",)
    return Contract(tuple(dict.fromkeys(names)), tuple(dict.fromkeys(requirements)), tuple(dict.fromkeys(gaps)))


def _worker_modules(interpreter: Interpreter, workers: list[ClassRef]) -> list[SourceModule]:
    modules: dict[str, SourceModule] = {}
    for worker in workers:
        for ancestor in interpreter.classes.lineage(worker).order:
            if ancestor.module.name.startswith("sglang.srt.speculative."):
                modules[ancestor.module.name] = ancestor.module
    return list(modules.values())


def _workers(interpreter: Interpreter, member: EnumMember) -> tuple[list[ClassRef], tuple[str, ...]]:
    frame = interpreter.module_frame(member.cls.module)
    create = interpreter.attribute(member, "create_worker", ast.Pass(), frame)
    if not isinstance(create, Function):
        return [], (f"{member.cls.node.name}.create_worker is not in {member.cls.module.path}",)
    arguments = Instance(interpreter.number())
    # One draft model per step is a layout of its own, for models that bring their own draft layers.
    interpreter.state[arguments.number, "enable_multi_layer_eagle"] = False
    values = [e.value for e in interpreter.ways_out(create, (arguments,), {}) if e.kind == "return"]
    found = [v for v in values if isinstance(v, ClassRef)]
    gaps = tuple(
        f"create_worker may return something that is not followed: {v}" for v in values if not isinstance(v, ClassRef)
    )
    return list({id(c.node): c for c in found}.values()), gaps


@dataclass(frozen=True, slots=True)
class _Guard:
    test: ast.expr
    holds: bool


@dataclass(frozen=True, slots=True)
class _Body:
    """A function or method to be searched for uses of models.

    ``given`` are its parameters that hold a model, each with the role. ``conditions`` are the open ones under which it
    is called; ``about_eagle`` says that it is called for speculation, whatever its own conditions are.
    """

    module: SourceModule
    node: ast.FunctionDef
    cls: ast.ClassDef | None
    given: tuple[tuple[str, str], ...]
    conditions: tuple[str, ...]
    about_eagle: bool


def _uses(
    interpreter: Interpreter, member: EnumMember, module: SourceModule, *, in_worker: bool
) -> Iterator[Requirement]:
    """The uses in a module's classes, and in the functions that they hand a model to."""
    waiting = [
        _Body(module, function, cls, (), (), in_worker) for cls in module.classes.values() for function in _methods(cls)
    ]
    seen = set(waiting)
    for body in waiting:  # grows as functions are found
        judge = _Judge(interpreter, member, body, in_worker)
        aliases: dict[str, ast.expr] = {}
        for node, guards in _walk(body.node.body, ()):
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                aliases[node.targets[0].id] = node.value
            if isinstance(node, ast.Attribute):
                requirement = judge.requirement(node, guards, aliases)
                if requirement:
                    yield requirement
            if isinstance(node, ast.Call):
                further = judge.handed_on(node, guards, aliases)
                if further and further not in seen:
                    seen.add(further)
                    waiting.append(further)


def _methods(cls: ast.ClassDef) -> list[ast.FunctionDef]:
    return [node for node in cls.body if isinstance(node, ast.FunctionDef)]


def _walk(body: list[ast.stmt], guards: tuple[_Guard, ...]) -> Iterator[tuple[ast.AST, tuple[_Guard, ...]]]:
    """Nodes in order, each with the conditions around it; the parts of ``and`` guard those after them."""
    for statement in body:
        if isinstance(statement, ast.If):
            yield from _expression(statement.test, guards)
            parts = statement.test.values if _is_and(statement.test) else [statement.test]
            yield from _walk(statement.body, (*guards, *(_Guard(part, True) for part in parts)))
            yield from _walk(statement.orelse, (*guards, _Guard(statement.test, False)))
            continue
        yield statement, guards
        blocks = ("body", "orelse", "finalbody", "handlers")
        for name, value in ast.iter_fields(statement):
            if name in blocks:
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _expression(child, guards)
        for name in blocks:
            for child in getattr(statement, name, []):
                yield from _walk(child.body if isinstance(child, ast.ExceptHandler) else [child], guards)


def _is_and(node: ast.expr) -> TypeGuard[ast.BoolOp]:
    return isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And)


def _expression(node: ast.AST, guards: tuple[_Guard, ...]) -> Iterator[tuple[ast.AST, tuple[_Guard, ...]]]:
    if isinstance(node, ast.BoolOp) and _is_and(node):
        for value in node.values:
            yield from _expression(value, guards)
            guards = (*guards, _Guard(value, True))
        return
    yield node, guards
    for child in ast.iter_child_nodes(node):
        yield from _expression(child, guards)


@dataclass(slots=True)
class _Judge:
    interpreter: Interpreter
    member: EnumMember
    body: _Body
    in_worker: bool

    def requirement(
        self, node: ast.Attribute, guards: tuple[_Guard, ...], aliases: dict[str, ast.expr]
    ) -> Requirement | None:
        """The requirement that ``MODEL.name`` stands for, or None where the expression is no model."""
        role = self._role(node.value, aliases)
        if role is None or not isinstance(node.ctx, ast.Load) or node.attr in _OF_EVERY_MODULE:
            return None
        reached = self._reached(guards)
        if reached is None:
            return None
        about_eagle, open_conditions = reached
        if not about_eagle:
            return None
        call = next((n for n in ast.walk(self.body.node) if isinstance(n, ast.Call) and n.func is node), None)
        if any(isinstance(a, ast.Starred) for a in (call.args if call else ())):
            open_conditions.append("called with unpacked arguments")
        return Requirement(
            self.member.name,
            role,
            node.attr,
            call is not None,
            len(call.args) if call else 0,
            tuple(k.arg for k in call.keywords if k.arg) if call else (),
            tuple(open_conditions),
            self.body.module.place(node),
        )

    def handed_on(self, call: ast.Call, guards: tuple[_Guard, ...], aliases: dict[str, ast.expr]) -> _Body | None:
        """The function that a call hands a model to; None where it does not, or is not known."""
        # Behind unpacked arguments nobody knows which parameter a place is.
        placed = takewhile(lambda value: not isinstance(value, ast.Starred), call.args)
        positional = {place: role for place, value in enumerate(placed) if (role := self._role(value, aliases))}
        named = {word.arg: role for word in call.keywords if word.arg and (role := self._role(word.value, aliases))}
        if not (positional or named) or not isinstance(call.func, ast.Name):
            return None
        reached = self._reached(guards)
        found = self._function(call.func.id)
        if reached is None or found is None:
            return None
        about_eagle, conditions = reached
        module, function = found
        parameters = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
        named |= {parameters[place]: role for place, role in positional.items() if place < len(parameters)}
        return _Body(module, function, None, tuple(sorted(named.items())), tuple(conditions), about_eagle)

    def _function(self, name: str) -> tuple[SourceModule, ast.FunctionDef] | None:
        """The module-level function of SGLang that a name in this body stands for."""
        tree, module = self.interpreter.tree, self.body.module
        imported: dict[str, tuple[str, str]] = {}
        for node in ast.walk(self.body.node):
            if isinstance(node, ast.ImportFrom):
                imported |= imported_names(node, module)
        where = tree.resolve_member(*imported[name]) if name in imported else tree.resolve(module, name)
        home = tree.module(where[0]) if where[0].startswith("sglang.srt.") else None
        statement = home.bindings.get(where[1], [None])[-1] if home else None
        return (home, statement) if home and isinstance(statement, ast.FunctionDef) else None

    def _reached(self, guards: tuple[_Guard, ...]) -> tuple[bool, list[str]] | None:
        """Whether code under these conditions runs for speculation, and the open ones; None where it never runs."""
        open_conditions = list(self.body.conditions)
        about_eagle = self.body.about_eagle
        for guard in guards:
            text = ast.unparse(guard.test)
            about_eagle = about_eagle or "eagle" in text
            known = self._truth(guard.test)
            if known is not None and known is not guard.holds:
                return None
            if known is None and not self._is_switch(guard.test):
                open_conditions.append(text if guard.holds else f"not ({text})")
        return about_eagle, list(dict.fromkeys(open_conditions))

    def _truth(self, test: ast.expr) -> bool | None:
        """The truth of a condition where the algorithm is EAGLE-3, on the interpreter's terms."""
        frame = Frame(self.interpreter.number(), self.body.module)
        this = Instance(self.interpreter.number())
        runner = Instance(self.interpreter.number())
        state = self.interpreter.state
        for number in (this.number, runner.number):
            state[number, "speculative_algorithm"] = state[number, "spec_algorithm"] = self.member
        state[frame.number, "self"], state[frame.number, "model_runner"] = this, runner
        state[this.number, "model_runner"] = runner
        try:
            return truth(self.interpreter.evaluate(test, frame))
        except Raised:
            return None

    def _is_switch(self, test: ast.expr) -> bool:
        """Whether a condition is the runner's switch for captured hidden states, on for EAGLE-3 targets."""
        name = test.attr if isinstance(test, ast.Attribute) else test.id if isinstance(test, ast.Name) else ""
        return "eagle" in name

    def _role(self, node: ast.expr, aliases: dict[str, ast.expr]) -> str | None:
        if isinstance(node, ast.Name) and node.id in aliases and aliases[node.id] is not node:
            return self._role(aliases[node.id], {k: v for k, v in aliases.items() if k != node.id})
        if isinstance(node, ast.Name):
            return dict(self.body.given).get(node.id)
        if not isinstance(node, ast.Attribute) or node.attr != "model":
            return None
        owner = ast.unparse(node.value)
        if not self.in_worker:
            runs = owner == "self" and self.body.cls is not None and self.body.cls.name.endswith("ModelRunner")
            return "target" if runs or owner.rpartition(".")[2] == "model_runner" else None
        if "target" in owner:
            return "target"
        return "draft" if "runner" in owner else None
