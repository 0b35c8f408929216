"""The dynamic loader, emulated: which file satisfies each NEEDED entry, and whether every symbol resolves.

Follows ld.so(8), dlopen(3) and glibc 2.36 (elf/dl-load.c, dl-deps.c, dl-version.c, dl-lookup.c), for
``dlopen(path, RTLD_NOW | RTLD_LOCAL)`` in a process that has already loaded something. Three phases, because the
symbols of all objects are indexed at once: map every closure, index the providers, check every reference.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from abi_checks.driver import DRIVER_LIBRARIES, PYTHON_LIBRARY, PYTHON_SYMBOL
from abi_checks.elf_facts import ElfFacts, Reference
from abi_checks.elf_format import DF_1_NOOPEN, DF_1_PIE, ET_DYN, machine_name
from abi_checks.files import Files
from abi_checks.resolution import ALREADY_LOADED, Found, Missing, Resolution, Unresolved, Verdict
from abi_checks.search import STEPS, LoaderOptions, Request, expand


class _Node:
    """An object mapped into a process: its facts, whom it was loaded by, and what its NEEDED entries led to."""

    __slots__ = ("assumed", "edges", "facts", "found", "missing", "parent")

    def __init__(self, facts: ElfFacts | None, parent: _Node | None, assumed: str = "") -> None:
        self.facts = facts
        self.parent = parent
        self.assumed = assumed
        """The name of a library, the driver's or the interpreter's, that is assumed to be there."""
        self.edges: list[_Node] = []
        self.found: dict[str, Found] = {}
        self.missing: list[Missing] = []

    @property
    def path(self) -> str:
        return self.facts.path if self.facts else self.assumed

    def chain(self) -> list[ElfFacts]:
        """The facts of the node and of those that led to its being loaded."""
        found: list[ElfFacts] = []
        node: _Node | None = self
        while node is not None:
            if node.facts:
                found.append(node.facts)
            node = node.parent
        return found


class _Space:
    """The link map of a process: nodes by the names and by the files under which they are known."""

    def __init__(self, base: _Space | None = None) -> None:
        self.base = base
        self.by_name: dict[str, _Node] = {}
        self.by_file: dict[int, _Node] = {}
        self.nodes: list[_Node] = []

    def named(self, name: str) -> _Node | None:
        return self.by_name.get(name) or (self.base.by_name.get(name) if self.base else None)

    def filed(self, key: int) -> _Node | None:
        return self.by_file.get(key) or (self.base.by_file.get(key) if self.base else None)

    def filed_new(self, node: _Node) -> bool:
        """Whether a node isn't part of the process yet."""
        return node.facts is None or self.filed(id(node.facts)) is None

    def add(self, node: _Node, name: str = "") -> None:
        self.nodes.append(node)
        if node.facts:
            self.by_file[id(node.facts)] = node
            if node.facts.soname:
                self.by_name.setdefault(node.facts.soname, node)
        if name:
            self.by_name.setdefault(name, node)


class _Definitions(dict[Reference, tuple[int, ...]]):
    """Reference → the objects (by id of their facts) whose definition may satisfy it; found when it is first asked
    for. A dictionary, since a whole environment asks 200,000 times."""

    def __init__(self, providers: Mapping[bytes, Sequence[ElfFacts]]) -> None:
        super().__init__()
        self._providers = providers

    def __missing__(self, reference: Reference) -> tuple[int, ...]:
        providers = self._providers.get(reference[0], ())
        self[reference] = answer = tuple(id(provider) for provider in providers if _matches(provider, reference))
        return answer


class Loader:
    """Answers, for any object of the target, what ``dlopen`` would do in the given process.

    Use: :meth:`start` with the programs and libraries the process begins with, :meth:`preload` for what it has loaded,
    then :meth:`resolve` once with every object.
    """

    def __init__(self, files: Files, options: LoaderOptions) -> None:
        self.files = files
        self.options = options
        self.process = _Space()
        self.globals: dict[int, _Node] = {}
        self.assumed_driver: set[str] = set()
        self._caller: _Node | None = None
        self._main: _Node | None = None
        self._providers: dict[bytes, list[ElfFacts]] = {}
        self._definitions = _Definitions(self._providers)
        self._pending: dict[int, list[Reference]] = {}

    def start(self, program: str) -> str:
        """Map the interpreter and its libraries; returns "" or why it can't be read."""
        facts = self.files.open(program)
        if isinstance(facts, str):
            return facts
        node = _Node(facts, None)
        self._main = self._caller = node
        for mapped in self._map(node, program, self.process):
            self.globals[id(mapped)] = mapped
            if mapped.facts and mapped.facts.soname.startswith("libpython"):
                self._caller = mapped
        return ""

    def preload(self, path: str, *, everywhere: bool) -> Resolution | None:
        """Load an object into the process; ``everywhere`` is RTLD_GLOBAL. None where there is no such object."""
        facts = self.files.open(path)
        if isinstance(facts, str):
            return None
        node = self.process.filed(id(facts))
        if node is None:
            node = _Node(facts, self._caller)
            self._map(node, path, self.process)
        if everywhere:
            for member in _closure(node):
                self.globals[id(member)] = member
        return _mapped_only(node)

    def would_map(self, path: str) -> bool:
        """Whether the object and all it needs would be found, were it opened now; changes nothing."""
        facts = self.files.open(path)
        if isinstance(facts, str):
            return False
        fresh = self._map(_Node(facts, self._caller), path, _Space(self.process))
        return not any(node.missing for node in fresh)

    def resolve(self, objects: Sequence[ElfFacts]) -> list[Resolution]:
        """The verdict on each object, every one in a process of its own that has loaded only what was preloaded."""
        roots: list[tuple[ElfFacts, _Node, list[_Node], str]] = []
        for facts in objects:
            refusal = self._refusal(facts)
            node = self.process.filed(id(facts))
            fresh: list[_Node] = []
            if node is None:
                node = _Node(facts, self._caller)
                if not refusal:
                    fresh = self._map(node, facts.path, _Space(self.process))
            roots.append((facts, node, fresh, refusal))
        self._index(self.process.nodes, (member for _, _, fresh, _ in roots for member in fresh))
        return [self._judge(*root) for root in roots]

    def resolve_after(self, facts: ElfFacts, siblings: Sequence[ElfFacts]) -> Resolution:
        """The verdict on an object in a process that has opened ``siblings`` first; only after :meth:`resolve`."""
        space = _Space(self.process)
        for sibling in siblings:
            if space.filed(id(sibling)) is None:
                self._map(_Node(sibling, self._caller), sibling.path, space)
        node = _Node(facts, self._caller)
        return self._judge(facts, node, self._map(node, facts.path, space), "")

    def _refusal(self, facts: ElfFacts) -> str:
        if facts.machine != self.options.machine or facts.elf_class != 64:
            return f"built for another machine: {machine_name(facts.machine)}, {facts.elf_class} bits"
        if facts.elf_type != ET_DYN:
            return "not a shared object: it is an executable that can't be loaded into a process"
        if facts.flags_1 & DF_1_PIE:
            return "a position-independent executable: dlopen refuses those"
        if facts.flags_1 & DF_1_NOOPEN:
            return "linked with -z nodlopen: dlopen refuses it"
        return ""

    # Phase 1: mapping

    def _map(self, root: _Node, path: str, space: _Space) -> list[_Node]:
        """Map ``root`` and, breadth first, all it needs, into ``space``; returns the nodes that are new there."""
        space.add(root, path)
        fresh = [root]
        for node in fresh:
            if node.facts is None:
                continue
            for name in node.facts.needed:
                target, found, considered = self._satisfy(name, node, space)
                if target is None:
                    node.missing.append(Missing(name, node.path, considered))
                    continue
                node.edges.append(target)
                node.found[name] = found
                if found.found_via != ALREADY_LOADED and space.filed_new(target):
                    space.add(target, name)
                    fresh.append(target)
                else:
                    space.by_name.setdefault(name, target)
        return fresh

    def _satisfy(self, name: str, node: _Node, space: _Space) -> tuple[_Node | None, Found, tuple[str, ...]]:
        loaded = space.named(name)
        if loaded is not None:
            return loaded, Found(loaded.path, ALREADY_LOADED), ()
        considered: list[str] = []
        if "/" in name:
            assert node.facts is not None
            path = expand(name, node.facts, self.options.machine)
            answer = self._candidate(path, considered)
            if answer:
                return self._known_or_new(answer, node, space), Found(answer.path, "path in NEEDED"), ()
        else:
            request = Request(name, node.chain(), self._main.facts if self._main else None, self.files, self.options)
            for rule, folder in (place for step in STEPS for place in step(request)):
                if name in self.files.names(folder):
                    answer = self._candidate(f"{folder}/{name}", considered)
                    if answer:
                        return self._known_or_new(answer, node, space), Found(f"{folder}/{name}", rule), ()
                else:
                    considered.append(f"{rule}: {folder}: no such file")
        if self.options.assume_driver and name in DRIVER_LIBRARIES:
            self.assumed_driver.add(name)
            return _Node(None, node, assumed=name), Found(name, "assumed: the driver of the GPU host"), ()
        if self._main is None and PYTHON_LIBRARY.fullmatch(name):
            return _Node(None, node, assumed=name), Found(name, "assumed: the interpreter"), ()
        return None, Found("", ""), tuple(considered)

    def _candidate(self, path: str, considered: list[str]) -> ElfFacts | None:
        answer = self.files.open(path)
        if isinstance(answer, str):
            considered.append(f"{path}: {answer}")
            return None
        if answer.machine != self.options.machine or answer.elf_class != 64:
            considered.append(
                f"{path}: built for another machine: {machine_name(answer.machine)}, {answer.elf_class} bits"
            )
            return None
        return answer

    def _known_or_new(self, facts: ElfFacts, parent: _Node, space: _Space) -> _Node:
        return space.filed(id(facts)) or _Node(facts, parent)

    # Phase 2: indexing

    def _index(self, *groups: Iterable[_Node]) -> None:
        """Symbol → the nodes that define it, for the symbols that anyone asks for."""
        unique = {id(node.facts): node.facts for group in groups for node in group if node.facts}
        wanted = {name for facts in unique.values() for name, _ in facts.undefined}
        for facts in unique.values():
            for name in wanted & facts.defined:
                self._providers.setdefault(name, []).append(facts)

    # Phase 3: judging

    def _judge(self, facts: ElfFacts, root: _Node, fresh: list[_Node], refusal: str) -> Resolution:
        if refusal:
            return Resolution(facts.path, Verdict.FAILS, {}, reason=refusal)
        if not fresh:
            return Resolution(
                facts.path, Verdict.LOADS, root.found, reason=ALREADY_LOADED, closure=_paths(_closure(root))
            )
        members = _closure(root)
        scope = {id(node.facts) for node in members if node.facts} | {
            id(node.facts) for node in self.globals.values() if node.facts
        }
        assumed = (node.assumed for node in (*members, *self.globals.values()) if node.assumed)
        drivers = [name for name in assumed if name in DRIVER_LIBRARIES]
        missing = tuple(gap for node in fresh for gap in node.missing)
        unresolved = [lack for node in fresh for lack in self._version_gaps(node)]
        for node in fresh:
            unresolved += self._symbol_gaps(node, scope, drivers)
        verdict = Verdict.FAILS if missing or unresolved else Verdict.LOADS
        return Resolution(facts.path, verdict, root.found, missing, tuple(unresolved), closure=_paths(members))

    def _version_gaps(self, node: _Node) -> Iterator[Unresolved]:
        """elf/dl-version.c: a version must be defined by the library it is asked of; one without definitions passes."""
        if node.facts is None:
            return
        for library, versions in node.facts.versions_needed:
            provider = next((edge.facts for edge in node.edges if _known_as(edge, library, node)), None)
            if provider is None:
                provider = next((edge.facts for edge in _closure(node) if _known_as(edge, library, node)), None)
            if provider and provider.has_version_definitions:
                for version in versions:
                    if version not in provider.versions_defined:
                        yield Unresolved("", version, node.path)

    def _symbol_gaps(self, node: _Node, scope: set[int], drivers: list[str]) -> Iterator[Unresolved]:
        if node.facts is None:
            return
        for reference in self._beyond_globals(node.facts):
            if scope.isdisjoint(self._definitions[reference]):
                text = reference[0].decode("utf-8", "backslashreplace")
                if self._main is None and PYTHON_SYMBOL.match(text):
                    continue
                if not any(DRIVER_LIBRARIES[driver](text) for driver in drivers):
                    elsewhere = next((provider.path for provider in self._providers.get(reference[0], ())), "")
                    yield Unresolved(text, (reference[1] or b"").decode(), node.path, elsewhere)

    def _beyond_globals(self, facts: ElfFacts) -> list[Reference]:
        """The references that the global scope, which is part of every scope, does not satisfy."""
        pending = self._pending.get(id(facts))
        if pending is None:
            everywhere = {id(node.facts) for node in self.globals.values() if node.facts}
            pending = [item for item in facts.undefined if everywhere.isdisjoint(self._definitions[item])]
            self._pending[id(facts)] = pending
        return pending


def _matches(facts: ElfFacts, reference: Reference) -> bool:
    """elf/dl-lookup.c, check_match: whether a definition may satisfy a reference, their versions considered."""
    name, version = reference
    definitions = facts.defined_versions.get(name)
    if not definitions:
        return True  # unversioned: an object without versions, or the base version
    if version is None:
        return any(not hidden for _, hidden in definitions)
    return any(defined == version for defined, _ in definitions)


def _known_as(edge: _Node, library: str, node: _Node) -> bool:
    if edge.facts is None:
        return False
    return edge.facts.soname == library or (library in node.found and node.found[library].path == edge.facts.path)


def _closure(root: _Node) -> list[_Node]:
    """``root`` and everything reachable through NEEDED entries, breadth first: the object's local scope."""
    seen = {id(root)}
    order = [root]
    for node in order:
        for edge in node.edges:
            if id(edge) not in seen:
                seen.add(id(edge))
                order.append(edge)
    return order


def _paths(nodes: Iterable[_Node]) -> frozenset[str]:
    return frozenset(node.path for node in nodes)


def _mapped_only(node: _Node) -> Resolution:
    missing = tuple(gap for member in _closure(node) for gap in member.missing)
    return Resolution(
        node.path, Verdict.FAILS if missing else Verdict.UNKNOWN, node.found, missing, closure=_paths(_closure(node))
    )
