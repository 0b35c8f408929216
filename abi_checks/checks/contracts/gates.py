"""Conditions, tables and lists keyed by compute capability that leave a target out; no call is followed.

An expression counts as a compute capability by its words (``capability``, ``major``, ``sm_version`` …) or because it
was assigned from one; predicates such as ``is_sm90_supported`` are asked of the source that defines them. A condition
is a gate where it is false on the target, whatever its other parts are, and not so on some other architecture.
"""

from __future__ import annotations

import ast
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from abi_checks.checks.contracts.execute import Interpreter
from abi_checks.checks.contracts.source import Place, SourceModule, SourceTree
from abi_checks.checks.contracts.values import Function, Partial, truth
from abi_checks.checks.contracts.world import Target

PACKAGES = ("sglang.srt", "sgl_kernel", "flashinfer", "sglang.jit_kernel")
WORDS = (b"capability", b"is_sm", b"is_blackwell", b"is_hopper", b"major_versions", b"sm_version", b"CAPABILIT")
PREDICATES = "sglang.srt.utils.common"
OTHERS = ((8, 0), (9, 0), (10, 0), (12, 0))
_CAPABILITY = re.compile(r"capabilit|\bcc_major\b|\bmajor\b|sm_version|compute_cap|\bsm_arch\b", re.IGNORECASE)
_PREDICATE = re.compile(r"_*(is_(?:sm\d+|blackwell|hopper|ampere)\w*)")
_LIST_NAME = re.compile(r"capabilit|major_versions|supported_majors|supported_archs", re.IGNORECASE)
_SKIPPED = ("flashinfer/data/", "flashinfer/aot", "/benchmark")


class Consequence(StrEnum):
    """What leaving the target out means."""

    CRASH = "crash"
    REFUSAL = "refusal"
    SILENCE = "silence"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Gate:
    """One place that leaves the target out; ``kind`` is ``table``, ``list`` or ``condition``; ``end`` its last line."""

    place: Place
    end: int
    kind: str
    text: str
    consequence: Consequence
    function: str


def find_gates(tree: SourceTree, target: Target, packages: Sequence[str] = PACKAGES) -> list[Gate]:
    """All gates of the packages for a target, in order of their places."""
    finder = GateFinder(tree, target)
    gates = [
        gate
        for package in packages
        for path in tree.files(package, *WORDS)
        if not any(part in tree.relative(path) for part in _SKIPPED)
        for module in [tree.module_of(path)]
        if module is not None
        for gate in finder.gates(module)
    ]
    return sorted(gates, key=lambda gate: gate.place)


class GateFinder:
    """Finds the gates of one target, module by module."""

    def __init__(self, tree: SourceTree, target: Target) -> None:
        self.tree = tree
        self.target = (target.major, target.minor)
        self.others = tuple(o for o in OTHERS if o[0] != target.major)
        self.predicates = {cap: _predicates(tree, cap) for cap in (self.target, *self.others)}
        self._refusing: dict[str, bool | None] = {}

    def gates(self, module: SourceModule) -> Iterator[Gate]:
        """The gates of one module."""
        reader = _Reader(self, module, list(_nodes(module, self.tree.read(self.tree.root / module.path))))
        yield from reader.lists()
        yield from reader.tables()
        yield from reader.conditions()

    def refuses(self, module: SourceModule, name: str) -> bool | None:
        """Whether a function of the same package with a parameter of this name raises; None where there is none."""
        package = module.name.partition(".")[0]
        key = f"{package}:{name}"
        if key not in self._refusing:
            self._refusing[key] = self._find_refusing(package, name)
        return self._refusing[key]

    def _find_refusing(self, package: str, name: str) -> bool | None:
        answers = [
            any(isinstance(n, ast.Raise) for n in ast.walk(node))
            for path in self.tree.files(package, name.encode())
            for other in [self.tree.module_of(path)]
            for node in (ast.walk(other.tree) if other else ())
            if isinstance(node, ast.FunctionDef)
            and any(a.arg == name for a in [*node.args.args, *node.args.kwonlyargs])
        ]
        return any(answers) if answers else None


def _predicates(tree: SourceTree, capability: tuple[int, int]) -> dict[str, bool]:
    """Answers of the source's own predicates; those that stay open are left out."""
    interpreter = Interpreter(tree, Target(*capability, gpus=1))
    module = tree.module(PREDICATES)
    answers: dict[str, bool] = {}
    for name in module.bindings if module else ():
        if _PREDICATE.fullmatch(name) and module:
            value = interpreter.global_value(module, name)
            if isinstance(value, Function | Partial):
                known = truth(interpreter.call(value, (), {}, ast.Name(name), interpreter.module_frame(module)))
                if known is not None:
                    answers[name] = known
    return answers


@dataclass(slots=True)
class _Reader:
    finder: GateFinder
    module: SourceModule
    nodes: list[tuple[str, ast.AST]]

    def _gate(self, node: ast.AST, kind: str, text: str, consequence: Consequence, function: str) -> Gate:
        end = int(getattr(node, "end_lineno", 0) or 1)
        return Gate(self.module.place(node), end, kind, text, consequence, function)

    def lists(self) -> Iterator[Gate]:
        """Calls that name the supported majors or capabilities in a literal list."""
        for function, node in self.nodes:
            if not isinstance(node, ast.Call):
                continue
            called = _called(node)
            named = [(k.arg, k.value) for k in node.keywords if k.arg and _LIST_NAME.search(k.arg)]
            if _LIST_NAME.search(called) and node.args:
                named.append((called, node.args[0]))
            for name, value in named:
                numbers = _numbers(value, self.module)
                if (
                    numbers
                    and not _listed(numbers, self.finder.target)
                    and any(_listed(numbers, o) for o in self.finder.others)
                ):
                    refuses = self.finder.refuses(self.module, name)
                    consequence = (
                        Consequence.UNKNOWN
                        if refuses is None
                        else Consequence.REFUSAL
                        if refuses
                        else Consequence.SILENCE
                    )
                    yield self._gate(node, "list", f"{name}={numbers}", consequence, function)

    def tables(self) -> Iterator[Gate]:
        """Subscripts, by a compute capability, of dictionaries that have no entry for the target."""
        for function, node in self.nodes:
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
                table, key = node.value, node.slice
            elif (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "get"
                and node.args
            ):
                table, key = node.func.value, node.args[0]
            else:
                continue
            if not isinstance(table, ast.Name | ast.Attribute) or not _CAPABILITY.search(ast.unparse(key)):
                continue
            keys = self._table_keys(table)
            if not keys or _listed(keys, self.finder.target) or not any(_listed(keys, o) for o in self.finder.others):
                continue
            guarded = isinstance(node, ast.Call) or self._guarded(function, node)
            consequence = Consequence.SILENCE if guarded else Consequence.CRASH
            yield self._gate(node, "table", f"{ast.unparse(node)} has keys {keys}", consequence, function)

    def _table_keys(self, node: ast.expr) -> list[object]:
        """The integer keys of a dictionary that a module or class of the tree binds to a name."""
        name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        if not name:
            return []
        for statement in ast.walk(self.module.tree):
            if isinstance(statement, ast.Assign) and any(
                isinstance(t, ast.Name) and t.id == name for t in statement.targets
            ):
                return _dict_keys(statement.value)
        if name in self.module.imports:
            origin, member = self.finder.tree.resolve(self.module, name)
            other = (
                self.finder.tree.module(origin)
                if origin.partition(".")[0] in ("sglang", "flashinfer", "sgl_kernel")
                else None
            )
            last = other.bindings.get(member, [None])[-1] if other else None
            return _dict_keys(last.value) if isinstance(last, ast.Assign) else []
        return []

    def _guarded(self, function: str, node: ast.Subscript) -> bool:
        """Whether the function asks for membership before the subscript, or reads with ``get``."""
        table, key = ast.unparse(node.value), ast.unparse(node.slice)
        functions = (n for n in ast.walk(self.module.tree) if isinstance(n, ast.FunctionDef) and n.name == function)
        return any(
            isinstance(inner, ast.Compare)
            and isinstance(inner.ops[0], ast.In | ast.NotIn)
            and ast.unparse(inner.left) == key
            and ast.unparse(inner.comparators[0]) == table
            and inner.lineno <= node.lineno
            for outer in functions
            for inner in ast.walk(outer)
        )

    def conditions(self) -> Iterator[Gate]:
        """Conditions that cannot hold on the target."""
        seen: set[int] = set()
        aliases = self._aliases()
        for function, node in self.nodes:
            test, consequence, wanted = _context(node)
            if test is None or id(test) in seen:
                continue
            seen.add(id(test))
            for value, effect in ((wanted, consequence),) if wanted is not None else ():
                mine = self._truth(test, self.finder.target, aliases)
                if mine is not (not value):
                    continue
                if any(self._truth(test, other, aliases) is not mine for other in self.finder.others):
                    yield self._gate(node, "condition", ast.unparse(test), effect, function)

    def _aliases(self) -> frozenset[str]:
        """Names assigned from a compute capability anywhere in the module."""
        names: set[str] = set()
        for _, node in self.nodes:
            if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call | ast.Subscript | ast.IfExp):
                continue
            text = ast.unparse(node.value)
            if "get_device_capability" in text or "get_compute_capability" in text:
                for target in node.targets:
                    parts = target.elts if isinstance(target, ast.Tuple) else [target]
                    names.update(n.id for n in parts[:1] if isinstance(n, ast.Name))
        return frozenset(names)

    def _truth(self, node: ast.expr, capability: tuple[int, int], aliases: frozenset[str]) -> bool | None:
        if isinstance(node, ast.BoolOp):
            deciding = isinstance(node.op, ast.Or)
            answers = [self._truth(v, capability, aliases) for v in node.values]
            return deciding if deciding in answers else None if None in answers else not deciding
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self._truth(node.operand, capability, aliases)
            return None if inner is None else not inner
        if isinstance(node, ast.Call | ast.Name | ast.Attribute):
            name = node.func if isinstance(node, ast.Call) else node
            text = name.attr if isinstance(name, ast.Attribute) else name.id if isinstance(name, ast.Name) else ""
            match = _PREDICATE.fullmatch(text)
            return self.finder.predicates[capability].get(match[1]) if match else None
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return _compare(node, capability, aliases, self.module)
        return None


def _called(node: ast.Call) -> str:
    return (
        node.func.attr
        if isinstance(node.func, ast.Attribute)
        else node.func.id
        if isinstance(node.func, ast.Name)
        else ""
    )


_LOOKED_AT = (ast.Call, ast.Subscript, ast.Assert, ast.If, ast.IfExp, ast.Return, ast.Assign)
_LINE = re.compile(
    rb"capabilit|is_sm\d|is_blackwell|is_hopper|is_ampere|major|sm_version|sm_arch|compute_cap|archs", re.IGNORECASE
)


def _nodes(module: SourceModule, source: bytes) -> Iterator[tuple[str, ast.AST]]:
    """The nodes that can be gates, each with the name of the function around it.

    Statements none of whose lines has a word of the subject are passed over: nearly all of a file.
    """
    lines = [number for number, line in enumerate(source.split(b"\n"), 1) if _LINE.search(line)]
    stack: list[tuple[str, ast.AST]] = [("", module.tree)]
    while stack:
        name, node = stack.pop()
        if isinstance(node, ast.stmt):
            start = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
            first = bisect_left(lines, start)
            if first == len(lines) or lines[first] > (node.end_lineno or node.lineno):
                continue
        if isinstance(node, _LOOKED_AT):
            yield name, node
        inner = node.name if isinstance(node, ast.FunctionDef) else name
        stack.extend((inner, child) for child in ast.iter_child_nodes(node))


def _context(node: ast.AST) -> tuple[ast.expr | None, Consequence, bool | None]:
    """The condition of a statement, what it means that it fails, and the value that lets the target in."""
    if isinstance(node, ast.Assert):
        return node.test, Consequence.REFUSAL, True
    if isinstance(node, ast.If | ast.IfExp):
        body = node.body if isinstance(node.body, list) else []
        orelse = node.orelse if isinstance(node.orelse, list) else []
        if body and isinstance(body[0], ast.Raise):
            return node.test, Consequence.REFUSAL, False
        if orelse and isinstance(orelse[0], ast.Raise):
            return node.test, Consequence.REFUSAL, True
        return node.test, Consequence.SILENCE, True
    if isinstance(node, ast.Return) and isinstance(node.value, ast.BoolOp | ast.Compare):
        return node.value, Consequence.SILENCE, True
    return None, Consequence.UNKNOWN, None


def _compare(
    node: ast.Compare, capability: tuple[int, int], aliases: frozenset[str], module: SourceModule
) -> bool | None:
    text = ast.unparse(node.left)
    if not (_CAPABILITY.search(text) or (isinstance(node.left, ast.Name) and node.left.id in aliases)):
        return None
    right, op = node.comparators[0], node.ops[0]
    if isinstance(op, ast.In | ast.NotIn):
        numbers = _numbers(right, module)
        return None if not numbers else _listed(numbers, capability) is isinstance(op, ast.In)
    try:
        limit = ast.literal_eval(right)
    except (ValueError, TypeError, SyntaxError):
        return None
    mine: object
    if isinstance(limit, tuple):
        mine = capability
    elif isinstance(limit, int) and not isinstance(limit, bool):
        mine = capability[0] if limit < 20 else capability[0] * 10 + capability[1]
    else:
        return None
    if "minor" in text:
        return None
    match op:
        case ast.Eq():
            return bool(mine == limit)
        case ast.NotEq():
            return bool(mine != limit)
        case ast.Lt():
            return bool(mine < limit)
        case ast.LtE():
            return bool(mine <= limit)
        case ast.Gt():
            return bool(mine > limit)
        case ast.GtE():
            return bool(mine >= limit)
    return None


def _numbers(node: ast.expr, module: SourceModule) -> list[object]:
    """A literal list of integers or pairs, also behind a name that the module binds to one."""
    if isinstance(node, ast.Name) and node.id in module.bindings:
        last = module.bindings[node.id][-1]
        if isinstance(last, ast.Assign):
            node = last.value
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return []
    if not isinstance(value, list | tuple | set):
        return []
    return [v for v in value if isinstance(v, int | tuple)] if all(isinstance(v, int | tuple) for v in value) else []


def _dict_keys(node: ast.expr | None) -> list[object]:
    keys = node.keys if isinstance(node, ast.Dict) else []
    values = [k.value for k in keys if isinstance(k, ast.Constant)]
    return [v for v in values if isinstance(v, int) and not isinstance(v, bool)] if len(values) == len(keys) else []


def _listed(numbers: Sequence[object], capability: tuple[int, int]) -> bool:
    major, minor = capability
    return major in numbers or major * 10 + minor in numbers or (major, minor) in numbers
