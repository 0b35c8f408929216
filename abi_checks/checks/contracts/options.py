"""Requested versus effective: what the source will do with each option of a launch on the target.

The start is followed twice for an option, with it and without it. What differs is the option's effect: other arguments,
objects that are made, an exception. Conditions in which the option, or an argument that carries it on, is read elsewhere
are evaluated both ways; where every one is false with the option set, the option is inert and those parts of the
condition that are false are its gates.
"""

from __future__ import annotations

import ast
import copy
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from textwrap import shorten

from abi_checks.checks.contracts.evaluate import Frame
from abi_checks.checks.contracts.execute import Enough, Interpreter
from abi_checks.checks.contracts.source import Place, SourceModule, SourceTree
from abi_checks.checks.contracts.startup import (
    ARGUMENTS,
    RUNNER,
    Missing,
    Profile,
    Start,
    complete_arguments,
    option_names,
    publish_arguments,
    runner_stub,
    start,
)
from abi_checks.checks.contracts.values import (
    ClassRef,
    Construction,
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


class Outcome(StrEnum):
    """What becomes of an option."""

    EFFECTIVE = "effective"
    CHANGED = "changed"
    INERT = "inert"
    REFUSED = "refused"
    CRASHES = "crashes"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class OptionVerdict:
    """The verdict on one option; ``requested`` is None for a value that nobody asked for.

    ``places`` are the lines that decide, ``conditions`` what else must hold at run time for an effect.
    """

    option: str
    requested: Value
    outcome: Outcome
    reason: str
    places: tuple[Place, ...] = ()
    conditions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Site:
    """A condition that reads an argument."""

    module: SourceModule
    function: ast.FunctionDef
    test: ast.expr
    read: ast.expr


@dataclass(frozen=True, slots=True)
class _Use:
    """What the readers of some arguments say.

    ``runner_methods`` are methods of the model runner that read them, ``refusals`` exceptions met only with the option set.
    """

    gates: tuple[tuple[Place, str], ...]
    effects: tuple[tuple[Place, tuple[str, ...]], ...]
    readers: tuple[Place, ...]
    runner_methods: frozenset[str]
    refusals: tuple[Raised, ...]


class OptionJudge:
    """Judges the options of one profile against one source tree."""

    def __init__(self, tree: SourceTree, profile: Profile) -> None:
        self.tree = tree
        self.names = option_names(tree)
        self.interpreter = Interpreter(tree, profile.target)
        self.profile = replace(profile, options=tuple((self.field(n), v) for n, v in profile.options))
        self.spelled = {self.field(n): n for n, _ in profile.options}
        self.asked = self.profile.options
        self.stopped: dict[str, Raised] = {}
        self._started: dict[frozenset[str], Start | Missing] = {}
        self._reads: dict[str, dict[str, list[_Read]]] = {}
        self.begun = self._begin()

    def field(self, option: str) -> str:
        """The field of ServerArgs behind an option, through the ``dest`` of a command line alias."""
        module = self.tree.module(ARGUMENTS[0])
        flag = "--" + option.replace("_", "-")
        if option in self.names or module is None or flag.encode() not in self.tree.read(self.tree.root / module.path):
            return option
        for node in ast.walk(module.tree):
            if (
                isinstance(node, ast.Call)
                and node.args
                and isinstance(node.args[0], ast.Constant)
                and node.args[0].value == flag
            ):
                for keyword in node.keywords:
                    if keyword.arg == "dest" and isinstance(keyword.value, ast.Constant):
                        return str(keyword.value.value)
        return option

    def _begin(self) -> Start | Missing:
        """Complete the arguments and start; options without which an exception goes away are left out from there."""
        profile = self.profile
        while True:
            begun = complete_arguments(self.interpreter, profile)
            end = None if isinstance(begun, Missing) else begun.stopped or self._crash(begun)
            culprit = self._culprit(profile, end, begun) if end and isinstance(begun, Start) else None
            if end is None or culprit is None:
                self.profile = profile
                return begun
            self.stopped[culprit] = end
            profile = profile.without(culprit)

    def _culprit(self, profile: Profile, end: Raised, begun: Start) -> str | None:
        """The first option without which the start gets past an exception; switches are tried first."""
        names = sorted(
            (name for name, _ in profile.options), key=lambda n: not isinstance(dict(profile.options)[n], bool)
        )
        return next((name for name in names if self._avoids(profile.without(name), end, begun)), None)

    def _crash(self, begun: Start) -> Raised | None:
        """The exception that certainly ends the model runner's start."""
        methods = self._runner_methods()
        started = start(begun, methods) if methods else None
        return started.crashed if isinstance(started, Start) else None

    def _runner_methods(self) -> frozenset[str]:
        """Methods of the model runner that read an option of the profile."""
        module = self.tree.module(RUNNER[0])
        reads = self._readers(module) if module else {}
        return frozenset(
            f.name for name, value in self.asked if isinstance(value, bool) for f, _, _ in reads.get(name, ())
        )

    def _avoids(self, profile: Profile, end: Raised, begun: Start) -> bool:
        """Whether the start gets past an exception with this profile instead."""
        other = complete_arguments(self.interpreter, profile)
        if isinstance(other, Missing):
            return False
        if other.stopped:
            # Another exception counts only where it comes later.
            further = len(other.writes) > len(begun.writes)
            return begun.stopped is not None and other.stopped.place != end.place and further
        crash = self._crash(other) if begun.stopped is None else None
        return crash is None or crash.place != end.place

    def judge_all(self) -> list[OptionVerdict]:
        """A verdict for each option of the profile, in its order."""
        return [replace(self._verdict(name, value), option=self.spelled[name]) for name, value in self.asked]

    def _verdict(self, name: str, value: Value) -> OptionVerdict:
        if name in self.stopped:
            error = self.stopped[name]
            outcome = Outcome.REFUSED if error.deliberate else Outcome.CRASHES
            return OptionVerdict(name, value, outcome, str(error), (error.place,))
        if isinstance(self.begun, Missing):
            return OptionVerdict(name, value, Outcome.UNKNOWN, self.begun.reason)
        if name not in self.names:
            return OptionVerdict(
                name, value, Outcome.REFUSED, f"ServerArgs has no field {name}: this SGLang does not know it"
            )
        if self.begun.stopped:
            error = self.begun.stopped
            return OptionVerdict(name, value, Outcome.UNKNOWN, f"the start ends before: {error}", (error.place,))
        return self._judge(name, value, self.begun)

    def _judge(self, name: str, requested: Value, begun: Start) -> OptionVerdict:
        without = complete_arguments(self.interpreter, self.profile.without(name))
        if isinstance(without, Missing):
            return OptionVerdict(name, requested, Outcome.UNKNOWN, without.reason)
        final = begun.effective.get(name)
        carriers = {name} if final == requested and type(final) is type(requested) else set()
        consequences = []
        for argument, value in begun.effective.items() if without.stopped is None else ():
            mine, other = begun.last_write(argument), without.last_write(argument)
            moved = (mine.place if mine else None) != (other.place if other else None)
            if argument == name or not (moved or _differs(value, without.effective.get(argument))):
                continue
            if mine and is_concrete(value) and value is not None and argument in self.names:
                consequences.append((argument, value, mine.place))
        if not carriers:
            # The option was taken back; what was written instead of it carries it on.
            carriers = {argument for argument, _, _ in consequences if self._written_for(name, argument, begun)}
        if not carriers:
            return self._taken_back(name, requested, final, begun)
        verdict = self._follow(name, requested, carriers, begun, without)
        if verdict.outcome is Outcome.UNKNOWN and not verdict.places and (inside := self._read_inside(name)):
            verdict = replace(
                verdict,
                outcome=Outcome.EFFECTIVE,
                reason="read while the arguments are completed",
                places=tuple(inside[:1]),
            )
        notes = [f"{argument} becomes {shorten(repr(value), 40)} ({place})" for argument, value, place in consequences]
        return replace(verdict, reason="; ".join([verdict.reason, *notes]))

    def _read_inside(self, name: str) -> list[Place]:
        module = self.tree.module(ARGUMENTS[0])
        nodes = ast.walk(module.tree) if module else ()
        reads = [n for n in nodes if isinstance(n, ast.Attribute) and n.attr == name and isinstance(n.ctx, ast.Load)]
        return sorted(module.place(n) for n in reads if ast.unparse(n.value) == "self") if module else []

    def _taken_back(self, name: str, requested: Value, final: Value, begun: Start) -> OptionVerdict:
        write = begun.last_write(name)
        places = (write.place,) if write else ()
        if isinstance(final, Unknown):
            return OptionVerdict(
                name,
                requested,
                Outcome.UNKNOWN,
                f"its final value depends on what is not known: {final.reason}",
                places,
            )
        outcome = Outcome.INERT if isinstance(requested, bool) else Outcome.CHANGED
        return OptionVerdict(name, requested, outcome, f"the start sets it to {final!r}", places)

    def _written_for(self, name: str, argument: str, begun: Start) -> bool:
        """Whether an argument is written in a statement whose condition reads the option."""
        write = begun.last_write(argument)
        module = self.tree.module(write.place.path.removesuffix(".py").replace("/", ".")) if write else None
        if module is None or write is None:
            return False
        return any(
            isinstance(node, ast.If)
            and node.lineno <= write.place.line <= (node.end_lineno or 0)
            and _reads(node.test, name)
            for node in ast.walk(module.tree)
        )

    def _follow(self, name: str, requested: Value, carriers: set[str], begun: Start, without: Start) -> OptionVerdict:
        values = {
            c: (begun.effective.get(c), _other(begun.effective.get(c), without.effective.get(c))) for c in carriers
        }
        switch = isinstance(requested, bool)
        use = self._uses(values, begun, judged=switch)
        if use.refusals:
            refusal = use.refusals[0]
            return OptionVerdict(name, requested, Outcome.REFUSED, str(refusal), tuple(r.place for r in use.refusals))
        made = self._difference(name, begun, without, use.runner_methods) if switch and use.runner_methods else None
        if made is not None:
            return replace(made, requested=requested)
        if use.effects and switch:
            places = tuple(place for place, _ in use.effects)
            conditions = tuple(dict.fromkeys(c for _, cs in use.effects for c in cs))
            return OptionVerdict(
                name, requested, Outcome.EFFECTIVE, "a condition that reads it can hold", places, conditions
            )
        if use.gates and switch:
            text = "; ".join(dict.fromkeys(f"{gate} is false on {self.profile.target}" for _, gate in use.gates))
            return OptionVerdict(
                name, requested, Outcome.INERT, text, tuple(dict.fromkeys(place for place, _ in use.gates))
            )
        if use.readers:
            return OptionVerdict(name, requested, Outcome.EFFECTIVE, f"taken over as {requested!r}", use.readers[:2])
        return OptionVerdict(name, requested, Outcome.UNKNOWN, "no code that reads it is found")

    def _uses(self, values: dict[str, tuple[Value, Value]], begun: Start, *, judged: bool) -> _Use:
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
                for function, owner, node in self._readers(module).get(argument, ()):
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
        return _Use(tuple(gates), tuple(effects), tuple(readers), frozenset(methods), tuple(refusals))

    def _readers(self, module: SourceModule) -> dict[str, list[_Read]]:
        if module.name not in self._reads:
            self._reads[module.name] = _reads_of_arguments(module)
        return self._reads[module.name]

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
        """The parts of a condition that stay false although the option is set; or the parts on which its effect depends.

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

    def _difference(self, name: str, begun: Start, without: Start, methods: frozenset[str]) -> OptionVerdict | None:
        """What the model runner makes, or dies of, only with the option; None where nothing differs."""
        if methods not in self._started:
            self._started[methods] = start(begun, methods)
        on, off = self._started[methods], start(without, methods)
        if isinstance(on, Missing) or isinstance(off, Missing):
            return None
        if on.crashed and (off.crashed is None or off.crashed.place != on.crashed.place):
            outcome = Outcome.REFUSED if on.crashed.deliberate else Outcome.CRASHES
            return OptionVerdict(
                name, True, outcome, f"{on.crashed} while the model runner starts", (on.crashed.place,)
            )
        made, dropped = _only_in(on, off), _only_in(off, on)
        if made:
            return _communicator(name, made[0], on)
        if dropped and not on.crashed:
            place = dropped[0].cls.module.place(dropped[0].cls.node)
            alone = _communicator(name, dropped[0], off)
            note = f"; without the option {alone.reason} as well" if alone.outcome is Outcome.INERT else ""
            return OptionVerdict(
                name, True, Outcome.EFFECTIVE, f"{dropped[0].cls.node.name} is not made{note}", (place, *alone.places)
            )
        if on.crashed:
            return OptionVerdict(
                name, True, Outcome.UNKNOWN, f"the start ends before: {on.crashed}", (on.crashed.place,)
            )
        return None


def _only_in(one: Start, other: Start) -> list[Construction]:
    """Communicators, known by their ``disabled``, that one start makes and the other does not."""
    usual = {id(c.cls.node) for c in other.constructed}
    return [
        c
        for c in one.constructed
        if id(c.cls.node) not in usual and any((c.number, "disabled") in e.state for e in c.exits)
    ]


def _other(value: Value, without: Value) -> Value:
    """A value of an argument with which it asks for nothing."""
    if is_concrete(without) and without != value:
        return without
    return False if isinstance(value, bool) else None


class _Substitute(ast.NodeTransformer):
    """Puts a value in the place of the expression that reads an argument."""

    def __init__(self, read: ast.expr, value: Value) -> None:
        self.key = (read.lineno, read.col_offset, type(read))
        self.value = value

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.expr) and (node.lineno, node.col_offset, type(node)) == self.key:
            return ast.copy_location(ast.Constant(self.value), node)
        return super().generic_visit(node)


def _communicator(name: str, made: Construction, begun: Start) -> OptionVerdict:
    """Whether an object that an option makes stays switched on; ``disabled`` is how SGLang's communicators say so."""
    cls = made.cls.node.name
    states = [(e, e.state.get((made.number, "disabled"))) for e in made.exits if e.kind != "raise"]
    early = [e for e, off in states if e.kind == "return" and off is True]
    last, last_state = states[-1] if states else (None, None)
    if last and last.kind == "return" and last_state is True and len(early) == len(states):
        why = f"{cls} switches itself off"
        return OptionVerdict(name, True, Outcome.INERT, why, tuple(p for p in (last.guard, last.place) if p))
    if early and any(e.certain is False for e in early) and last and last.kind == "end" and last_state is False:
        conditions = tuple(f"{cls} does not return early at {e.place}" for e in early)
        return OptionVerdict(
            name, True, Outcome.UNKNOWN, f"{cls} may switch itself off", tuple(e.place for e in early), conditions
        )
    if last_state is False or (last and last.kind == "end" and _switched_elsewhere(made)):
        place = made.cls.module.place(made.cls.node)
        conditions = tuple(f"{cls} does not return early at {e.place}" for e in early)
        return OptionVerdict(name, True, Outcome.EFFECTIVE, f"{cls} is made and can be used", (place,), conditions)
    return OptionVerdict(
        name,
        True,
        Outcome.UNKNOWN,
        f"whether {cls} switches itself off is open",
        (made.cls.module.place(made.cls.node),),
    )


def _switched_elsewhere(made: Construction) -> bool:
    """Whether a method other than the constructor assigns ``self.disabled``."""
    return any(
        isinstance(node, ast.Attribute) and node.attr == "disabled" and isinstance(node.ctx, ast.Store)
        for function in made.cls.node.body
        if isinstance(function, ast.FunctionDef) and function.name != "__init__"
        for node in ast.walk(function)
    )


def _differs(left: Value, right: Value) -> bool:
    if is_concrete(left) and is_concrete(right):
        return bool(left != right)
    return is_concrete(left) is not is_concrete(right)


def _reads(node: ast.AST, argument: str) -> bool:
    return any(isinstance(n, ast.Attribute) and n.attr == argument for n in ast.walk(node))


_Read = tuple[ast.FunctionDef, ast.ClassDef | None, ast.expr]


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
    """The outermost condition in a function that a node is part of: a test, or a boolean expression that is returned."""
    for statement in ast.walk(function):
        test = statement.test if isinstance(statement, ast.If | ast.IfExp | ast.While) else None
        if isinstance(statement, ast.Return | ast.Assign) and isinstance(statement.value, ast.BoolOp | ast.Compare):
            test = statement.value
        if test is not None and any(n is node for n in ast.walk(test)):
            return test
    return None
