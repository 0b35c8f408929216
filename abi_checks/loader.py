"""The dynamic loader, emulated: which file satisfies each NEEDED entry, and whether every symbol resolves.

Follows ld.so(8), dlopen(3) and glibc 2.36 (elf/dl-load.c, dl-deps.c, dl-version.c, dl-lookup.c), for
``dlopen(path, RTLD_NOW | RTLD_LOCAL)`` in a process that has already loaded something. Three phases, because the
symbols of all objects are indexed at once: map every closure, index the providers, check every reference.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from abi_checks.bytesource import FileSource
from abi_checks.driver import DRIVER_LIBRARIES
from abi_checks.elf import DF_1_NODEFLIB, DF_1_NOOPEN, DF_1_PIE, ET_DYN, ElfError, ElfFacts, Reference, read_elf
from abi_checks.ldcache import DEFAULT_FOLDERS, host_cache, hwcaps_levels


ALREADY_LOADED = "already loaded"


class Verdict(StrEnum):
    """What the loader would say of an object."""

    LOADS = "loads"
    FAILS = "fails"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Found:
    """The file that satisfies a NEEDED entry, and by which rule it was found."""

    path: str
    found_via: str


@dataclass(frozen=True, slots=True)
class Missing:
    """A NEEDED entry that nothing satisfies; ``considered`` lists the places looked at, in order, and why each was passed over."""

    library: str
    required_by: str
    considered: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unresolved:
    """A symbol, or a symbol version, that no object in scope provides."""

    symbol: str
    """Mangled; "" where a whole version is missing from the library it is asked of."""
    version: str
    required_by: str
    defined_by: str = ""
    """An object that defines the symbol and is not in scope, if the target or the process has one."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """The verdict on one object, with what it rests on."""

    path: str
    verdict: Verdict
    found: Mapping[str, Found]
    """NEEDED entry of this object → what satisfies it."""
    missing: tuple[Missing, ...] = ()
    """Of this object and of what it loads."""
    unresolved: tuple[Unresolved, ...] = ()
    reason: str = ""
    """Why the verdict is ``unknown``, or why the object can't be opened at all."""
    closure: frozenset[str] = frozenset()
    """Paths of everything in its scope that it loads itself or finds loaded by name."""


class _Node:
    """An object mapped into a process: its facts, whom it was loaded by, and what its NEEDED entries led to."""

    __slots__ = ("assumed", "edges", "facts", "found", "missing", "parent")

    def __init__(self, facts: ElfFacts | None, parent: _Node | None, assumed: str = "") -> None:
        self.facts = facts
        self.parent = parent
        self.assumed = assumed
        """The name of a driver library that is assumed to be there."""
        self.edges: list[_Node] = []
        self.found: dict[str, Found] = {}
        self.missing: list[Missing] = []

    @property
    def path(self) -> str:
        return self.facts.path if self.facts else self.assumed


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


@dataclass(frozen=True, slots=True)
class LoaderOptions:
    """What of the host takes part. ``library_path`` is LD_LIBRARY_PATH; ``assume_driver`` supplies the NVIDIA driver's libraries where they are missing."""

    machine: int
    library_path: tuple[str, ...] = ()
    assume_driver: bool = True


class Files:
    """The files of the target, and of the host where the target does not have them, by absolute path."""

    def __init__(
        self,
        facts: Iterable[ElfFacts],
        aliases: Mapping[str, str],
        folders: Mapping[str, frozenset[str]],
        root: str,
        on_disk: bool,
    ) -> None:
        self._known: dict[str, ElfFacts | str] = {item.path: item for item in facts}
        for alias, path in aliases.items():
            if path in self._known:
                self._known[alias] = self._known[path]
        self._folders: dict[str, frozenset[str]] = dict(folders)
        self._root = root + "/"
        self._on_disk = on_disk
        self._by_identity: dict[tuple[int, int], ElfFacts] = {}

    def identify(self, facts: ElfFacts, identity: tuple[int, int]) -> None:
        """Tell which inode an object of the target has, so that a path to it from outside leads to the same object."""
        self._by_identity[identity] = facts

    def names(self, folder: str) -> frozenset[str]:
        """The names in a folder; none where it isn't there."""
        listed = self._folders.get(folder)
        if listed is None:
            if not self._on_disk and folder.startswith(self._root):
                listed = frozenset()
            else:
                try:
                    listed = frozenset(os.listdir(folder))
                except OSError:
                    listed = frozenset()
            self._folders[folder] = listed
        return listed

    def known(self, path: str) -> ElfFacts | None:
        """The facts of an object that has been opened, by its path."""
        answer = self._known.get(path)
        return None if isinstance(answer, str) else answer

    def open(self, path: str) -> ElfFacts | str:
        """The facts of the object at ``path``, or why it can't be one."""
        known = self._known.get(path)
        if known is None:
            known = self._known[path] = self._open_host(path)
        return known

    def _open_host(self, path: str) -> ElfFacts | str:
        if not self._on_disk and path.startswith(self._root):
            return "no such file"
        try:
            status = os.stat(path)
            identity = (status.st_dev, status.st_ino)
            if identity in self._by_identity:
                return self._by_identity[identity]
            with FileSource(path) as data:
                facts = read_elf(data, path)
        except OSError as error:
            return f"cannot be read: {error.strerror}"
        except ElfError as error:
            return f"not loadable: {error}"
        self._by_identity[identity] = facts
        return facts


Step = tuple[str, Iterator[str]]
"""One rule of the search: how an answer of it is reported, and the folders it looks at."""


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
        self._matching: dict[Reference, tuple[int, ...]] = {}

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
            return f"built for another machine (e_machine {facts.machine}, {facts.elf_class} bits)"
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
            path = self._expand(name, node)
            answer = self._candidate(path, considered)
            if answer:
                return self._known_or_new(answer, node, space), Found(answer.path, "path in NEEDED"), ()
        else:
            for rule, folders in self._steps(name, node):
                for folder in folders:
                    if name in self.files.names(folder):
                        answer = self._candidate(f"{folder}/{name}", considered)
                        if answer:
                            return self._known_or_new(answer, node, space), Found(f"{folder}/{name}", rule), ()
                    else:
                        considered.append(f"{rule}: {folder}: no such file")
        if self.options.assume_driver and name in DRIVER_LIBRARIES:
            self.assumed_driver.add(name)
            return _Node(None, node, assumed=name), Found(name, "assumed: the driver of the GPU host"), ()
        return None, Found("", ""), tuple(considered)

    def _candidate(self, path: str, considered: list[str]) -> ElfFacts | None:
        answer = self.files.open(path)
        if isinstance(answer, str):
            considered.append(f"{path}: {answer}")
            return None
        if answer.machine != self.options.machine or answer.elf_class != 64:
            considered.append(
                f"{path}: built for another machine (e_machine {answer.machine}, {answer.elf_class} bits)"
            )
            return None
        return answer

    def _known_or_new(self, facts: ElfFacts, parent: _Node, space: _Space) -> _Node:
        return space.filed(id(facts)) or _Node(facts, parent)

    def _steps(self, name: str, node: _Node) -> Iterator[Step]:
        """The rules of ld.so(8), "Rendering of NEEDED without a slash", in order."""
        facts = node.facts
        assert facts is not None
        if not facts.runpath:
            ancestor: _Node | None = node
            while ancestor is not None:
                if ancestor.facts and ancestor.facts.rpath and not ancestor.facts.runpath:
                    yield f"RPATH of {ancestor.path}", self._folders(ancestor.facts.rpath, ancestor)
                ancestor = ancestor.parent
            main = self._main
            if main is not None and main.facts and main.facts.rpath and not main.facts.runpath:
                yield f"RPATH of {main.path}", self._folders(main.facts.rpath, main)
        if self.options.library_path:
            yield "LD_LIBRARY_PATH", self._folders(self.options.library_path, node)
        if facts.runpath:
            yield f"RUNPATH of {node.path}", self._folders(facts.runpath, node)
        if facts.flags_1 & DF_1_NODEFLIB:
            return
        cached = host_cache(self.options.machine).get(name)
        if cached:
            yield "ld.so.cache", iter((os.path.dirname(cached),))
        yield (
            "default folder",
            (folder for folder in DEFAULT_FOLDERS.get(self.options.machine, ()) if self.files.names(folder)),
        )

    def _folders(self, paths: Iterable[str], node: _Node) -> Iterator[str]:
        for path in paths:
            folder = os.path.normpath(self._expand(path, node))
            if "glibc-hwcaps" in self.files.names(folder):
                for level in hwcaps_levels():
                    yield f"{folder}/glibc-hwcaps/{level}"
            yield folder

    def _expand(self, path: str, node: _Node) -> str:
        if "$" not in path:
            return path
        for token, value in (
            ("ORIGIN", os.path.dirname(node.path)),
            ("LIB", _LIB),
            ("PLATFORM", _PLATFORM.get(self.options.machine, "")),
        ):
            path = path.replace(f"${{{token}}}", value).replace(f"${token}", value)
        return path

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
        drivers = [node.assumed for node in (*members, *self.globals.values()) if node.assumed]
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
        matching = self._matching
        for reference in node.facts.undefined:
            answer = matching.get(reference)
            if answer is None:
                answer = matching[reference] = tuple(
                    id(provider) for provider in self._providers.get(reference[0], ()) if _matches(provider, reference)
                )
            if scope.isdisjoint(answer):
                text = reference[0].decode("utf-8", "backslashreplace")
                if not any(DRIVER_LIBRARIES[driver](text) for driver in drivers):
                    elsewhere = next((provider.path for provider in self._providers.get(reference[0], ())), "")
                    yield Unresolved(text, (reference[1] or b"").decode(), node.path, elsewhere)


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


# ld.so(8): $LIB is lib or lib64 by the system's ABI; Debian's multiarch loaders use lib/x86_64-linux-gnu.
_LIB = "lib/x86_64-linux-gnu" if os.path.isdir("/lib/x86_64-linux-gnu") else "lib64"
_PLATFORM = {62: "x86_64", 183: "aarch64"}
