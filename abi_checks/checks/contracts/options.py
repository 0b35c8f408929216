"""Requested versus effective: what the source will do with each option of a launch on the target.

The start is followed twice for an option, with it and without it. What differs is the option's effect: other
arguments, objects that are made, an exception. Conditions elsewhere that read the option, or an argument that carries
it on, are evaluated with it set; where every one is false all the same, the option is inert, and the parts of the
condition that are false are its gates.
"""

from __future__ import annotations

import ast
from dataclasses import replace
from textwrap import shorten

from abi_checks.checks.contracts.communicators import judge_communicator, only_in
from abi_checks.checks.contracts.execute import Interpreter
from abi_checks.checks.contracts.readers import Readers
from abi_checks.checks.contracts.source import Place, SourceTree
from abi_checks.checks.contracts.startup import (
    ARGUMENTS,
    RUNNER,
    Missing,
    Profile,
    Start,
    complete_arguments,
    option_names,
    start,
)
from abi_checks.checks.contracts.values import Raised, Unknown, Value, is_concrete
from abi_checks.checks.contracts.verdicts import OptionVerdict, Outcome


class OptionJudge:
    """Judges the options of one profile against one source tree."""

    def __init__(self, tree: SourceTree, profile: Profile) -> None:
        self.tree = tree
        self.names = option_names(tree)
        self.interpreter = Interpreter(tree, profile.target)
        self.readers = Readers(self.interpreter)
        self.profile = replace(profile, options=tuple((self.field(n), v) for n, v in profile.options))
        self.spelled = {self.field(n): n for n, _ in profile.options}
        self.asked = self.profile.options
        self.stopped: dict[str, Raised] = {}
        self._started: dict[frozenset[str], Start | Missing] = {}
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
        reads = self.readers.reads(module) if module else {}
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
        # A switch does more than to be read there: without a reader elsewhere, what it does is not known.
        decides = bool(consequences) or not isinstance(requested, bool)
        unread = verdict.outcome is Outcome.UNKNOWN and not verdict.places
        if unread and decides and (inside := self._read_inside(name)):
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
        use = self.readers.uses(values, begun, judged=switch)
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
        runner = RUNNER[0].replace(".", "/") + ".py"
        if switch and use.readers and all(place.path == runner for place in use.readers):
            reason = "the model runner reads it, and what comes of it is not settled"
            return OptionVerdict(name, requested, Outcome.UNKNOWN, reason, use.readers[:2])
        if use.readers:
            return OptionVerdict(name, requested, Outcome.EFFECTIVE, f"taken over as {requested!r}", use.readers[:2])
        return OptionVerdict(name, requested, Outcome.UNKNOWN, "no code that reads it is found")

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
        made, dropped = only_in(on, off), only_in(off, on)
        if made:
            return judge_communicator(name, made[0], on)
        if dropped and not on.crashed:
            place = dropped[0].cls.module.place(dropped[0].cls.node)
            alone = judge_communicator(name, dropped[0], off)
            note = f"; without the option {alone.reason} as well" if alone.outcome is Outcome.INERT else ""
            return OptionVerdict(
                name, True, Outcome.EFFECTIVE, f"{dropped[0].cls.node.name} is not made{note}", (place, *alone.places)
            )
        if on.crashed:
            return OptionVerdict(
                name, True, Outcome.UNKNOWN, f"the start ends before: {on.crashed}", (on.crashed.place,)
            )
        return None


def _other(value: Value, without: Value) -> Value:
    """A value of an argument with which it asks for nothing."""
    if is_concrete(without) and without != value:
        return without
    return False if isinstance(value, bool) else None


def _differs(left: Value, right: Value) -> bool:
    if is_concrete(left) and is_concrete(right):
        return bool(left != right)
    return is_concrete(left) is not is_concrete(right)


def _reads(node: ast.AST, argument: str) -> bool:
    return any(isinstance(n, ast.Attribute) and n.attr == argument for n in ast.walk(node))
