"""Objects that an option makes at start, and whether they stay switched on.

SGLang's communicators say so through an attribute ``disabled``, which their constructors set.
"""

from __future__ import annotations

import ast

from abi_checks.checks.contracts.startup import Start
from abi_checks.checks.contracts.values import Construction
from abi_checks.checks.contracts.verdicts import OptionVerdict, Outcome


def only_in(one: Start, other: Start) -> list[Construction]:
    """Communicators, known by their ``disabled``, that one start makes and the other does not."""
    usual = {id(c.cls.node) for c in other.constructed}
    return [
        c
        for c in one.constructed
        if id(c.cls.node) not in usual and any((c.number, "disabled") in e.state for e in c.exits)
    ]


def judge_communicator(name: str, made: Construction, begun: Start) -> OptionVerdict:
    """Whether an object that an option makes stays switched on; ``disabled`` is how SGLang's communicators say so."""
    cls = made.cls.node.name
    end = made.exits[-1]
    if end.kind == "raise":
        return OptionVerdict(name, True, Outcome.UNKNOWN, f"{cls} may raise {end.value} when it is made", (end.place,))
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
