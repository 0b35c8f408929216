"""Model classes of SGLang's registry, and whether each keeps the contract that speculative decoding has with it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from abi_checks.checks.contracts.classes import ClassIndex, members
from abi_checks.checks.contracts.eagle import Contract, Requirement
from abi_checks.checks.contracts.names import READ
from abi_checks.checks.contracts.source import Place, SourceModule, SourceTree
from abi_checks.checks.contracts.values import ClassRef

MODELS = "sglang.srt.models"
CLASS_SOURCES = (*READ, "transformers")
"""Packages in which base classes are looked up; only the modules on a class's way are read."""
_EMPTY_BASES = ("torch.nn.", "torch.autograd.", "abc.", "typing.", "enum.", "builtins.", "object", "contextlib.")
"""Bases outside the source that have none of the methods in question."""
_MAX_DELEGATION = 6


@dataclass(frozen=True, slots=True)
class Method:
    """What a class has under a method's name: ``has``, ``lacks`` or ``unknown``, and why; where it is defined."""

    state: str
    reason: str = ""
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class ClassVerdict:
    """One class of the registry; ``methods`` holds the answer for each method of the contract.

    ``open`` says that the contract could not be read in full, so that having all its methods proves nothing.
    """

    name: str
    place: Place
    methods: dict[str, Method] = field(default_factory=dict)
    open: bool = False
    delegates: tuple[str, ...] = ()
    """Sub-modules made in the constructor that have a method which the class itself lacks, as ``attribute (class)``."""

    @property
    def lacking(self) -> tuple[str, ...]:
        """The methods that the class certainly lacks."""
        return tuple(name for name, method in self.methods.items() if method.state == "lacks")

    @property
    def verdict(self) -> str:
        """``complete``, ``lacking`` or ``unknown``."""
        states = {method.state for method in self.methods.values()}
        return "lacking" if "lacks" in states else "unknown" if "unknown" in states or self.open else "complete"


@dataclass(frozen=True, slots=True)
class Registry:
    """The classes that ``EntryClass`` names, and what could not be read of them."""

    classes: tuple[ClassRef, ...]
    gaps: tuple[str, ...]


def read_registry(tree: SourceTree, names: Sequence[str] = ()) -> Registry:
    """The registry's classes; with names, only modules that mention one of them are parsed."""
    index = ClassIndex(tree, CLASS_SOURCES)
    found: list[ClassRef] = []
    gaps: list[str] = []
    folder = tree.root.joinpath(*MODELS.split("."))
    words = [name.encode() for name in names]
    for path in tree.files(MODELS, b"EntryClass"):
        # The registry looks at modules directly in the folder, not at packages below it.
        if path.parent != folder or (words and not any(word in tree.read(path) for word in words)):
            continue
        module = tree.module_of(path)
        if module is None:
            gaps.append(f"{tree.relative(path)} does not parse")
            continue
        for name in _entry_names(module, gaps):
            cls = index.find(module, name)
            if isinstance(cls, str):
                gaps.append(f"EntryClass of {module.path} names {name}, which is not found in the source")
            elif not names or cls.node.name in names:
                found.append(cls)
    if not folder.is_dir():
        gaps.append(f"there is no folder {MODELS.replace('.', '/')}")
    return Registry(tuple(found), tuple(gaps))


def _entry_names(module: SourceModule, gaps: list[str]) -> list[str]:
    statements = module.bindings.get("EntryClass", [])
    names: list[str] = []
    for statement in statements:
        value = statement.value if isinstance(statement, ast.Assign | ast.AnnAssign) else None
        elements = value.elts if isinstance(value, ast.List | ast.Tuple) else [value]
        for element in elements:
            if isinstance(element, ast.Name):
                names.append(element.id)
            else:
                gaps.append(f"EntryClass of {module.path} is computed")
    return names


class ClassJudge:
    """Judges classes against a contract."""

    def __init__(self, tree: SourceTree, contract: Contract) -> None:
        self.tree = tree
        self.contract = contract
        self.index = ClassIndex(tree, CLASS_SOURCES)
        self._answers: dict[tuple[int, str], Method] = {}

    def judge(self, cls: ClassRef) -> ClassVerdict:
        """The verdict on one class."""
        methods = {name: self.method(cls, name, uses) for name, uses in self.contract.methods().items()}
        missing = [name for name, method in methods.items() if method.state == "lacks"]
        place, delegates = cls.module.place(cls.node), tuple(self._helpers(cls, missing))
        return ClassVerdict(cls.node.name, place, methods, bool(self.contract.gaps), delegates)

    def method(self, cls: ClassRef, name: str, uses: Sequence[Requirement], depth: int = 0) -> Method:
        """Whether a class has a method that can do what its callers ask."""
        key = (id(cls.node), name)
        if key not in self._answers:
            self._answers[key] = Method("unknown", "delegates in a circle")
            self._answers[key] = self._method(cls, name, uses, depth)
        return self._answers[key]

    def _method(self, cls: ClassRef, name: str, uses: Sequence[Requirement], depth: int) -> Method:
        line = self.index.lineage(cls)
        for ancestor in line.order:
            statement = members(ancestor.node).get(name)
            if statement is None:
                continue
            place = ancestor.module.place(statement)
            if isinstance(statement, ast.FunctionDef):
                return self._function(cls, statement, uses, place, depth)
            if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Attribute | ast.Name):
                return self._alias(ancestor, statement.value, uses, place, depth)
            return Method("unknown", f"{name} is bound to {ast.unparse(statement)}", place)
        for ancestor in line.order:
            assigned = _assigned_attribute(ancestor, name)
            if assigned:
                return Method("has", f"set in the constructor of {ancestor.node.name}", assigned)
        for ancestor in line.order:
            for special in ("__getattr__", "__getattribute__"):
                if special in members(ancestor.node):
                    where = ancestor.module.place(members(ancestor.node)[special])
                    return Method("unknown", f"{ancestor.node.name} answers any name through {special}", where)
        foreign = [base for base in line.outside if not base.startswith(_EMPTY_BASES)]
        if line.open or foreign:
            return Method(
                "unknown", line.open[0] if line.open else f"base {foreign[0]} is outside the source that is read"
            )
        if cls.node.decorator_list:
            return Method("unknown", f"the class is decorated with {ast.unparse(cls.node.decorator_list[0])}")
        return Method("lacks", "not defined by the class or any base")

    def _alias(
        self, owner: ClassRef, value: ast.Attribute | ast.Name, uses: Sequence[Requirement], place: Place, depth: int
    ) -> Method:
        if isinstance(value, ast.Attribute):
            target = self.index.find(owner.module, ast.unparse(value.value))
            if isinstance(target, ClassRef) and depth < _MAX_DELEGATION:
                return self.method(target, value.attr, uses, depth + 1)
        elif isinstance(statement := members(owner.node).get(value.id), ast.FunctionDef):
            return self._function(owner, statement, uses, place, depth)
        return Method("unknown", f"bound to {ast.unparse(value)}", place)

    def _function(
        self, cls: ClassRef, node: ast.FunctionDef, uses: Sequence[Requirement], place: Place, depth: int
    ) -> Method:
        body = [s for s in node.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
        if not body or all(isinstance(s, ast.Pass) for s in body):
            return Method("lacks", "defined, but its body is empty", place)
        if isinstance(body[0], ast.Raise):
            return Method(
                "lacks",
                f"defined, but it only raises {ast.unparse(body[0].exc) if body[0].exc else ''}".rstrip(),
                place,
            )
        decorators = [ast.unparse(d) for d in node.decorator_list]
        if any(d.rpartition(".")[2] == "abstractmethod" for d in decorators):
            return Method("lacks", "defined, but abstract", place)
        if decorators and decorators[0] not in (
            "staticmethod",
            "classmethod",
            "torch.no_grad()",
            "torch.inference_mode()",
        ):
            return Method("unknown", f"decorated with {decorators[0]}", place)
        for use in uses:
            problem = signature_problem(node, use, bound="staticmethod" not in decorators)
            if problem:
                return Method("lacks", f"{problem} ({use.place} calls it)", place)
        return self._delegation(cls, node, body, uses, place, depth)

    def _delegation(
        self,
        cls: ClassRef,
        node: ast.FunctionDef,
        body: list[ast.stmt],
        uses: Sequence[Requirement],
        place: Place,
        depth: int,
    ) -> Method:
        """A method that only hands on to a sub-module's method of the same name is as good as that one."""
        if len(body) != 1 or depth >= _MAX_DELEGATION:
            return Method("has", "", place)
        call = body[0].value if isinstance(body[0], ast.Return | ast.Expr) else None
        function = call.func if isinstance(call, ast.Call) else None
        if not (isinstance(function, ast.Attribute) and isinstance(function.value, ast.Attribute)):
            return Method("has", "", place)
        owner = function.value
        if not (isinstance(owner.value, ast.Name) and owner.value.id == "self"):
            return Method("has", "", place)
        helpers = self._made(cls, owner.attr)
        if len(helpers) != 1:
            return Method("has", f"hands on to self.{owner.attr}, whose class is chosen at run time", place)
        answer = self.method(helpers[0], function.attr, uses, depth + 1)
        if answer.state == "has":
            return Method("has", f"hands on to self.{owner.attr} ({helpers[0].node.name})", place)
        return Method(answer.state, f"hands on to self.{owner.attr} ({helpers[0].node.name}): {answer.reason}", place)

    def _made(self, cls: ClassRef, attribute: str) -> list[ClassRef]:
        """The classes whose objects the constructors of a class put into an attribute; empty where one is open."""
        found: list[ClassRef] = []
        for ancestor in self.index.lineage(cls).order:
            constructor = members(ancestor.node).get("__init__")
            if not isinstance(constructor, ast.FunctionDef):
                continue
            for value in _assigned(constructor, attribute):
                made = self.index.find(ancestor.module, ast.unparse(value.func)) if isinstance(value, ast.Call) else ""
                if isinstance(made, str):
                    return []
                found.append(made)
            if found:
                break
        return list({id(c.node): c for c in found}.values())

    def _helpers(self, cls: ClassRef, missing: Iterable[str]) -> list[str]:
        """Sub-modules that have what the class lacks."""
        missing = list(missing)
        constructor = members(cls.node).get("__init__")
        if not missing or not isinstance(constructor, ast.FunctionDef):
            return []
        found = []
        for attribute in dict.fromkeys(_attribute_names(constructor)):
            made = self._made(cls, attribute)
            uses = self.contract.methods()
            names = [n for n in missing if made and all(self.method(m, n, uses[n], 1).state == "has" for m in made)]
            if names:
                found.append(f"self.{attribute} ({', '.join(m.node.name for m in made)}) has {', '.join(names)}")
        return found


def signature_problem(node: ast.FunctionDef, use: Requirement, *, bound: bool = True) -> str:
    """Why a function cannot take the arguments of a call; "" where it can."""
    arguments = node.args
    names = [a.arg for a in [*arguments.posonlyargs, *arguments.args]][1 if bound else 0 :]
    if use.positional > len(names) and not arguments.vararg:
        return f"takes at most {len(names)} arguments, not {use.positional}"
    accepted = {*names, *(a.arg for a in arguments.kwonlyargs)} - {a.arg for a in arguments.posonlyargs}
    for keyword in use.keywords:
        if keyword not in accepted and not arguments.kwarg:
            return f"takes no argument {keyword}"
        if keyword in names[: use.positional]:
            return f"would get {keyword} twice"
    needed = names[: len(names) - len(arguments.defaults)] if len(arguments.defaults) <= len(names) else []
    missing = [n for n in needed[use.positional :] if n not in use.keywords]
    missing += [
        a.arg
        for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        if d is None and a.arg not in use.keywords
    ]
    return f"needs {', '.join(missing)} as well" if missing else ""


def _assigned(constructor: ast.FunctionDef, attribute: str) -> list[ast.expr]:
    return [
        node.value
        for node in ast.walk(constructor)
        if isinstance(node, ast.Assign)
        and any(
            isinstance(t, ast.Attribute) and t.attr == attribute and ast.unparse(t.value) == "self"
            for t in node.targets
        )
    ]


def _attribute_names(constructor: ast.FunctionDef) -> list[str]:
    return [
        target.attr
        for node in ast.walk(constructor)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        for target in node.targets
        if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self"
    ]


def _assigned_attribute(cls: ClassRef, name: str) -> Place | None:
    constructor = members(cls.node).get("__init__")
    if not isinstance(constructor, ast.FunctionDef) or not _assigned(constructor, name):
        return None
    return cls.module.place(constructor)
