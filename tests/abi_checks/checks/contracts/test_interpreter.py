"""What the interpreter may claim to know, and what it must leave open."""

from pathlib import Path

import pytest

from abi_checks.checks.contracts.execute import Interpreter
from abi_checks.checks.contracts.values import Exit, Function, Unknown
from abi_checks.checks.contracts.world import parse_target
from abi_checks.errors import UsageError
from tests.abi_checks.checks.contracts.trees import COMMON, tree


def ways_out(root: Path, source: str, sm: str = "120", nvlink: bool | None = None, **files: str) -> list[Exit]:
    """The ways out of ``f(x)`` of a module sglang.m, called with something unknown."""
    paths = {f"sglang/{name}.py": text for name, text in files.items()}
    interpreter = Interpreter(tree(root, {"sglang/m.py": source, **paths}), parse_target(sm, 8, nvlink))
    function = interpreter.member("sglang.m", "f")
    assert isinstance(function, Function)
    return interpreter.ways_out(function, (Unknown("x"),), {})


def outcome(exits: list[Exit]) -> tuple[str, object, bool]:
    last = exits[-1]
    return last.kind, str(last.value) if last.kind == "raise" else last.value, last.certain


def test_a_table_without_the_capability_raises_for_certain(tmp_path: Path) -> None:
    source = """
        import torch
        TABLE = {9: 64, 10: 128}
        def f(x):
            if isinstance(x, int):
                x = str(x)
            major = torch.cuda.get_device_capability(x)[0]
            return TABLE[major]
    """
    exits = ways_out(tmp_path / "a", source)
    assert outcome(exits) == ("raise", "KeyError: 12", True)
    assert exits[-1].place.line == 8 and not exits[-1].value.deliberate
    assert outcome(ways_out(tmp_path / "b", source, "100")) == ("return", 128, True)


def test_a_false_part_decides_a_condition_whatever_is_unknown(tmp_path: Path) -> None:
    source = """
        from sglang.common import is_sm90_supported, is_sm100_supported
        _ok = is_sm90_supported() or is_sm100_supported()
        def f(x):
            return x > 0 and _ok and x.enabled
    """
    assert outcome(ways_out(tmp_path / "a", source, common=COMMON)) == ("return", False, True)
    assert isinstance(ways_out(tmp_path / "b", source, "90", common=COMMON)[-1].value, Unknown)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("if x: y = 1\n            else: y = 2", "it is open whether x (sglang/m.py:3): x"),
        ("y = 1 if x.on else 2", "it is open whether x.on (sglang/m.py:3): .on of something unknown"),
        ("z = 1 if x else 2\n            y = 3 if z > 1 else 4", "it is open whether x (sglang/m.py:3): x"),
        ("z = [1] if x else []\n            for y in z: pass", "it is open whether x (sglang/m.py:3): x"),
        ("y = helper(x)", "helper() may return before sglang/m.py:9"),
    ],
)
def test_what_is_open_is_said_with_the_first_condition(tmp_path: Path, body: str, reason: str) -> None:
    source = f"""
        def f(x):
            {body}
            return y
        def helper(x):
            if x:
                return 1
            "else"
            return 2
    """
    value = ways_out(tmp_path, source)[-1].value
    assert isinstance(value, Unknown) and value.reason == reason


def test_after_an_uncertain_return_nothing_is_certain(tmp_path: Path) -> None:
    source = """
        def f(x):
            if x.early:
                return 1
            raise ValueError("late")
    """
    exits = ways_out(tmp_path, source)
    assert [(e.kind, e.certain) for e in exits] == [("return", False), ("raise", False)]


def test_branches_are_joined_and_what_differs_is_unknown(tmp_path: Path) -> None:
    source = """
        def f(x):
            a, b = 1, 1
            if x:
                a = 2
            else:
                a = 3
            return (a, b)
    """
    value = ways_out(tmp_path, source)[-1].value
    assert isinstance(value[0], Unknown) and value[1] == 1


def test_tables_and_globals_that_change_at_run_time_are_unknown(tmp_path: Path) -> None:
    source = """
        CACHE = {}
        FLAG = False
        def fill(k):
            CACHE[k] = 1
        def switch(v):
            global FLAG
            FLAG = v
        def f(x):
            return (CACHE, FLAG)
    """
    assert all(isinstance(v, Unknown) for v in ways_out(tmp_path, source)[-1].value)


def test_a_package_that_is_not_installed_takes_the_except_branch(tmp_path: Path) -> None:
    source = """
        try:
            import not_installed_anywhere
            there = True
        except ImportError:
            there = False
        def f(x):
            return there
    """
    assert outcome(ways_out(tmp_path, source)) == ("return", False, True)


@pytest.mark.parametrize(("nvlink", "value"), [(False, 0), (True, 1)])
def test_topology_answers_the_multicast_question(tmp_path: Path, nvlink: bool, value: int) -> None:
    source = """
        import torch.distributed._symmetric_memory as memory
        def f(x):
            return memory.rendezvous(x, "group").multicast_ptr
    """
    assert ways_out(tmp_path, source, nvlink=nvlink)[-1].value == value


def test_without_topology_multicast_is_open(tmp_path: Path) -> None:
    source = """
        import torch.distributed._symmetric_memory as memory
        def f(x):
            if memory.rendezvous(x, "group").multicast_ptr == 0:
                return "off"
            return "on"
    """
    assert [(e.value, e.certain) for e in ways_out(tmp_path, source)] == [("off", False), ("on", True)]


def test_endless_recursion_ends(tmp_path: Path) -> None:
    source = """
        def f(x):
            return g(x)
        def g(x):
            while x:
                x = f(x)
            return g(x)
    """
    assert isinstance(ways_out(tmp_path, source)[-1].value, Unknown)


@pytest.mark.parametrize("text", ["", "sm", "1", "abc", "12345"])
def test_a_bad_capability_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError):
        parse_target(text)


def test_capabilities_are_read_in_every_spelling() -> None:
    assert {(t.major, t.minor) for t in map(parse_target, ("120", "12.0", "sm_120", "sm_120a"))} == {(12, 0)}
