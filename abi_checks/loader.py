"""The dynamic loader, emulated: which file satisfies each NEEDED entry, and whether every symbol resolves.

Follows ld.so(8), dlopen(3) and glibc 2.36 (elf/dl-load.c, dl-deps.c, dl-version.c, dl-lookup.c), for
``dlopen(path, RTLD_NOW | RTLD_LOCAL)`` in a process that has already loaded something. Three phases, because the
symbols of all objects are indexed at once: map every closure, index the providers, check every reference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from abi_checks.driver import DRIVER_LIBRARIES, PYTHON_LIBRARY, PYTHON_SYMBOL
from abi_checks.elf_facts import ElfFacts
from abi_checks.elf_format import DF_1_NOOPEN, DF_1_PIE, ET_DYN, machine_name
from abi_checks.files import Files
from abi_checks.link_map import LinkMap, Node, closure
from abi_checks.resolution import ALREADY_LOADED, Crowded, Found, Missing, Resolution, Verdict
from abi_checks.search import STEPS, LoaderOptions, Request, expand
from abi_checks.static_tls import StaticTls
from abi_checks.symbol_lookup import SymbolLookup, version_gaps


class Loader:
    """Answers, for any object of the target, what ``dlopen`` would do in the given process.

    Use: :meth:`start` with the programs and libraries the process begins with, :meth:`preload` for what it has loaded,
    then :meth:`resolve` once with every object.
    """

    def __init__(self, files: Files, options: LoaderOptions) -> None:
        self.files = files
        self.options = options
        self.process = LinkMap()
        self.globals: dict[int, Node] = {}
        self.assumed_driver: set[str] = set()
        self._caller: Node | None = None
        self._main: Node | None = None
        self._symbols = SymbolLookup(self.globals)
        self._static_tls = StaticTls.of_start((), options.machine)

    def start(self, program: str) -> str:
        """Map the interpreter and its libraries; returns "" or why it can't be read."""
        facts = self.files.open(program)
        if isinstance(facts, str):
            return facts
        node = Node(facts, None)
        self._main = self._caller = node
        for mapped in self._map(node, program, self.process):
            self.globals[id(mapped)] = mapped
            if mapped.facts and mapped.facts.soname.startswith("libpython"):
                self._caller = mapped
        self._started()
        return ""

    def begin_without_program(self, paths: Iterable[str]) -> None:
        """Map what an unknown interpreter certainly has, in place of :meth:`start`."""
        for path in paths:
            facts = self.files.open(path)
            if not isinstance(facts, str) and self.process.filed(id(facts)) is None:
                for mapped in self._map(Node(facts, None), path, self.process):
                    self.globals[id(mapped)] = mapped
        self._started()

    def _started(self) -> None:
        objects = (node.facts for node in self.process.nodes if node.facts)
        self._static_tls = StaticTls.of_start(objects, self.options.machine)

    def preload(self, path: str, *, everywhere: bool) -> Resolution | None:
        """Load an object into the process; ``everywhere`` is RTLD_GLOBAL. None where there is no such object."""
        facts = self.files.open(path)
        if isinstance(facts, str):
            return None
        node = self.process.filed(id(facts))
        if node is None:
            node = Node(facts, self._caller)
            self._crowded(self._map(node, path, self.process), self._static_tls)
        if everywhere:
            for member in closure(node):
                self.globals[id(member)] = member
        return _mapped_only(node)

    def would_map(self, path: str) -> bool:
        """Whether the object and all it needs would be found, were it opened now; changes nothing."""
        facts = self.files.open(path)
        if isinstance(facts, str):
            return False
        fresh = self._map(Node(facts, self._caller), path, LinkMap(self.process))
        return not any(node.missing for node in fresh)

    def resolve(self, objects: Sequence[ElfFacts]) -> list[Resolution]:
        """The verdict on each object, every one in a process of its own that has loaded only what was preloaded."""
        roots: list[tuple[ElfFacts, Node, list[Node], str]] = []
        for facts in objects:
            refusal = self._refusal(facts)
            node = self.process.filed(id(facts))
            fresh: list[Node] = []
            if node is None:
                node = Node(facts, self._caller)
                if not refusal:
                    fresh = self._map(node, facts.path, LinkMap(self.process))
            roots.append((facts, node, fresh, refusal))
        self._symbols.index(self.process.nodes, (member for _, _, fresh, _ in roots for member in fresh))
        return [self._judge(*root, self._static_tls.copy()) for root in roots]

    def resolve_after(self, facts: ElfFacts, siblings: Sequence[ElfFacts]) -> Resolution:
        """The verdict on an object in a process that has opened ``siblings`` first; only after :meth:`resolve`."""
        space, static_tls = LinkMap(self.process), self._static_tls.copy()
        for sibling in siblings:
            if space.filed(id(sibling)) is None:
                self._crowded(self._map(Node(sibling, self._caller), sibling.path, space), static_tls)
        node = Node(facts, self._caller)
        return self._judge(facts, node, self._map(node, facts.path, space), "", static_tls)

    def _foreign(self, facts: ElfFacts) -> str:
        """Why the machine can't run the object, or ""."""
        if facts.machine == self.options.machine and facts.elf_class == 64:
            return ""
        return f"built for another machine: {machine_name(facts.machine)}, {facts.elf_class} bits"

    def _refusal(self, facts: ElfFacts) -> str:
        if foreign := self._foreign(facts):
            return foreign
        if facts.elf_type != ET_DYN:
            return "not a shared object: it is an executable that can't be loaded into a process"
        if facts.flags_1 & DF_1_PIE:
            return "a position-independent executable: dlopen refuses those"
        if facts.flags_1 & DF_1_NOOPEN:
            return "linked with -z nodlopen: dlopen refuses it"
        return ""

    # Phase 1: mapping

    def _map(self, root: Node, path: str, space: LinkMap) -> list[Node]:
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

    def _satisfy(self, name: str, node: Node, space: LinkMap) -> tuple[Node | None, Found, tuple[str, ...]]:
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
            return Node(None, node, assumed=name), Found(name, "assumed: the driver of the GPU host"), ()
        if self._main is None and PYTHON_LIBRARY.fullmatch(name):
            return Node(None, node, assumed=name), Found(name, "assumed: the interpreter"), ()
        return None, Found("", ""), tuple(considered)

    def _candidate(self, path: str, considered: list[str]) -> ElfFacts | None:
        answer = self.files.open(path)
        if isinstance(answer, str):
            considered.append(f"{path}: {answer}")
            return None
        if foreign := self._foreign(answer):
            considered.append(f"{path}: {foreign}")
            return None
        return answer

    def _known_or_new(self, facts: ElfFacts, parent: Node, space: LinkMap) -> Node:
        return space.filed(id(facts)) or Node(facts, parent)

    # Phase 3: judging

    def _judge(self, facts: ElfFacts, root: Node, fresh: list[Node], refusal: str, static_tls: StaticTls) -> Resolution:
        if refusal:
            foreign = bool(self._foreign(facts))
            return Resolution(facts.path, Verdict.FAILS, {}, reason=refusal, foreign=foreign)
        if not fresh:
            return Resolution(
                facts.path, Verdict.LOADS, root.found, reason=ALREADY_LOADED, closure=_paths(closure(root))
            )
        members = closure(root)
        scope = {id(node.facts) for node in members if node.facts} | {
            id(node.facts) for node in self.globals.values() if node.facts
        }
        assumed = self._assumed_names(members)
        missing = tuple(gap for node in fresh for gap in node.missing)
        unresolved = [lack for node in fresh for lack in version_gaps(node)]
        for node in fresh:
            unresolved += self._symbols.gaps(node, scope, assumed)
        crowded = self._crowded(fresh, static_tls)
        verdict = Verdict.FAILS if missing or unresolved or crowded else Verdict.LOADS
        return Resolution(
            facts.path, verdict, root.found, missing, tuple(unresolved), closure=_paths(members), crowded=crowded
        )

    def _crowded(self, fresh: Iterable[Node], static_tls: StaticTls) -> Crowded | None:
        """Give objects that are opened their static TLS; the first that does not fit, if any."""
        for node in fresh:
            free = static_tls.free
            if node.facts and not static_tls.place(node.facts):
                return Crowded(node.path, node.facts.tls[0], free, static_tls.surplus)
        return None

    def _assumed_names(self, members: Sequence[Node]) -> Callable[[str], bool]:
        """Whether a symbol is of a library that is assumed to be there: the driver's in scope, or the interpreter's."""
        libraries = {node.assumed for node in (*members, *self.globals.values())}
        owned = [DRIVER_LIBRARIES[name] for name in libraries if name in DRIVER_LIBRARIES]
        if self._main is None:
            owned.append(PYTHON_SYMBOL.match)
        return lambda name: any(matches(name) for matches in owned)


def _paths(nodes: Iterable[Node]) -> frozenset[str]:
    return frozenset(node.path for node in nodes)


def _mapped_only(node: Node) -> Resolution:
    missing = tuple(gap for member in closure(node) for gap in member.missing)
    return Resolution(
        node.path, Verdict.FAILS if missing else Verdict.UNKNOWN, node.found, missing, closure=_paths(closure(node))
    )
