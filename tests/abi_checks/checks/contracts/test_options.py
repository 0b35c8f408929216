"""Requested and effective on a small server."""

from pathlib import Path

from abi_checks.checks.contracts.options import OptionJudge
from abi_checks.checks.contracts.report import judge_launch
from abi_checks.checks.contracts.startup import Profile
from abi_checks.checks.contracts.verdicts import OptionVerdict, Outcome
from abi_checks.checks.contracts.world import parse_target
from tests.abi_checks.checks.contracts.trees import COMMON, tree

ARGUMENTS = """
    import dataclasses
    from typing import Optional
    @dataclasses.dataclass
    class ServerArgs:
        model_path: str
        tp_size: int = 1
        fused: bool = False
        symmetric: bool = False
        other_ring: bool = False
        strict: bool = False
        backend: Optional[str] = None
        algorithm: Optional[str] = None
        batch: Optional[int] = None
        unread: bool = False
        def __post_init__(self):
            if self.algorithm is not None and self.batch is None:
                self.batch = 48
            if self.strict and self.model_path != "good":
                raise ValueError("strict wants good")
    _global = None
    def set_global(server_args):
        global _global
        _global = server_args
    def get_global():
        return _global
"""
GATE = """
    from sglang.srt.server_args import get_global
    from sglang.srt.utils.common import is_sm90_supported
    def should_fuse(server_args, n):
        return (n > 0
            and is_sm90_supported()
            and server_args.fused)
"""
RUNNER = """
    import torch
    TABLE = {9: 1}
    class Ring:
        def __init__(self, group):
            self.disabled = True
            self.size = TABLE[torch.cuda.get_device_capability()[0]]
            self.disabled = False
    class OtherRing:
        def __init__(self, group):
            self.disabled = True
            if torch.cuda.get_device_capability()[0] == 12:
                return
            self.disabled = False
    class ModelRunner:
        def __init__(self, model_config, server_args):
            self.server_args = server_args
            self.connect()
        def connect(self):
            if self.server_args.symmetric:
                self.ring = Ring(None)
            if self.server_args.other_ring:
                self.other = OtherRing(None)
        def size(self):
            return self.server_args.batch, self.server_args.algorithm
"""
CONFIG = "class ModelConfig:\n    def _derive_model_shapes(self):\n        self.attention_arch = None\n"


def judged(root: Path, sm: str, **options: object) -> dict[str, OptionVerdict]:
    files: dict[str, str | bytes] = {
        "sglang/srt/utils/common.py": COMMON,
        "sglang/srt/server_args.py": ARGUMENTS,
        "sglang/srt/gate.py": GATE,
        "sglang/srt/model_executor/model_runner.py": RUNNER,
        "sglang/srt/configs/model_config.py": CONFIG,
    }
    profile = Profile("Model", parse_target(sm, 2, False), tuple(options.items()))
    return {v.option: v for v in OptionJudge(tree(root, files), profile).judge_all()}


def test_a_gate_makes_an_option_inert_and_is_named(tmp_path: Path) -> None:
    inert = judged(tmp_path / "a", "120", fused=True)["fused"]
    assert (inert.outcome, [str(p) for p in inert.places]) == (Outcome.INERT, ["sglang/srt/gate.py:6"])
    assert "is_sm90_supported()" in inert.reason
    on = judged(tmp_path / "b", "90", fused=True)["fused"]
    assert (on.outcome, on.conditions) == (Outcome.EFFECTIVE, ("n > 0",))


def test_a_crash_is_laid_to_its_option_and_the_others_are_still_judged(tmp_path: Path) -> None:
    verdicts = judged(tmp_path, "120", other_ring=True, symmetric=True, fused=True)
    assert {name: v.outcome for name, v in verdicts.items()} == {
        "other_ring": Outcome.INERT,
        "symmetric": Outcome.CRASHES,
        "fused": Outcome.INERT,
    }
    assert [str(p) for p in verdicts["symmetric"].places] == ["sglang/srt/model_executor/model_runner.py:7"]
    assert "OtherRing switches itself off" in verdicts["other_ring"].reason
    on = judged(tmp_path / "b", "90", other_ring=True, symmetric=True)
    assert {v.outcome for v in on.values()} == {Outcome.EFFECTIVE}


def test_a_refusal_while_arguments_are_completed(tmp_path: Path) -> None:
    verdicts = judged(tmp_path, "120", fused=True, strict=True)
    assert verdicts["strict"].outcome is Outcome.REFUSED
    assert verdicts["strict"].reason == "ValueError: strict wants good"
    assert verdicts["fused"].outcome is Outcome.INERT


def test_what_an_option_changes_unasked_is_said(tmp_path: Path) -> None:
    verdict = judged(tmp_path, "120", algorithm="EAGLE3")["algorithm"]
    assert verdict.outcome is Outcome.EFFECTIVE
    assert "batch becomes 48 (sglang/srt/server_args.py:18)" in verdict.reason


def test_unread_and_unheard_of_options(tmp_path: Path) -> None:
    verdicts = judged(tmp_path, "120", unread=True, unheard_of=1)
    assert verdicts["unread"].outcome is Outcome.UNKNOWN
    assert verdicts["unheard_of"].outcome is Outcome.REFUSED


def test_where_the_source_has_moved_the_answer_is_unknown(tmp_path: Path) -> None:
    sources = tree(tmp_path, {"sglang/srt/elsewhere.py": "x = 1\n"})
    profile = Profile("Model", parse_target("120"), (("fused", True),))
    assert {v.outcome for v in judge_launch(sources, profile)} == {Outcome.UNKNOWN}
