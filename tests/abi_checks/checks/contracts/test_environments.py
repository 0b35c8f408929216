"""The contracts of real SGLang releases; paths and line numbers are those of the released wheels."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import whatthepatch

from abi_checks.checks.contracts.attention import judge_attention, read_coverage
from abi_checks.checks.contracts.eagle import read_contract
from abi_checks.checks.contracts.gates import Consequence, find_gates
from abi_checks.checks.contracts.registry import ClassJudge, ClassVerdict, read_registry
from abi_checks.checks.contracts.report import EAGLE, GATE, LAUNCH, SOURCE, check_sglang, judge_launch
from abi_checks.checks.contracts.source import SourceTree
from abi_checks.checks.contracts.startup import Profile
from abi_checks.checks.contracts.verdicts import OptionVerdict, Outcome
from abi_checks.checks.contracts.world import Target, parse_target
from abi_checks.findings import Severity
from stack.patching.series import load_all
from stack.prefix import Build

pytestmark = [pytest.mark.environment, pytest.mark.timeout(900)]

KIMI = "KimiK25ForConditionalGeneration"
OLD_IMPORTABLE, NEW_IMPORTABLE = 173, 219
"""Classes of 0.5.9 and 0.5.14 that import on a CPU; the others want vllm, or a newer transformers."""
METHODS = ("get_embed_and_head", "set_eagle3_layers_to_capture", "set_embed_and_head")
SM120, SM90 = parse_target("120", 8, False), parse_target("90", 8, True)
LAUNCH_LINE: tuple[tuple[str, object], ...] = (
    ("trust_remote_code", True),
    ("cuda_graph_max_bs", 128),
    ("disable_custom_all_reduce", True),
    ("attention_backend", "flashinfer"),
    ("enable_flashinfer_allreduce_fusion", True),
    ("speculative_algorithm", "EAGLE3"),
    ("speculative_draft_model_path", "DRAFT"),
    ("speculative_num_steps", 2),
    ("speculative_eagle_topk", 4),
    ("speculative_num_draft_tokens", 16),
    ("mem_fraction_static", 0.88),
)


def judged(tree: SourceTree) -> dict[str, ClassVerdict]:
    judge = ClassJudge(tree, read_contract(tree))
    return {v.name: v for v in map(judge.judge, read_registry(tree).classes)}


def launch(tree: SourceTree, target: Target, *more: tuple[str, object], leave: str = "") -> dict[str, OptionVerdict]:
    given = {**dict(LAUNCH_LINE), **dict(more)}
    given.pop(leave, None)
    return {v.option: v for v in judge_launch(tree, Profile(KIMI, target, tuple(given.items())), read_coverage(tree))}


@pytest.fixture(scope="module")
def old(plain_environment: Callable[..., Path]) -> SourceTree:
    """SGLang 0.5.9 as released; the built stack carries the project's patches."""
    return SourceTree(plain_environment("cu128") / "lib/python3.12/site-packages")


@pytest.fixture(scope="module")
def new(built_stack: Callable[[str], Build]) -> SourceTree:
    """SGLang 0.5.14, for which there are no patches."""
    return SourceTree(built_stack("cu130-pypi").environment / "lib/python3.12/site-packages")


@pytest.fixture(scope="module")
def patched(old: SourceTree, tmp_path_factory: pytest.TempPathFactory) -> SourceTree:
    """The environment of 0.5.9 as links, with a copy of sglang that has the default series."""
    site = tmp_path_factory.mktemp("patched")
    for entry in old.root.iterdir():
        if entry.name != "sglang":
            (site / entry.name).symlink_to(entry)
    shutil.copytree(
        old.root / "sglang",
        site / "sglang",
        ignore=lambda _, names: [n for n in names if "." in n and not n.endswith(".py")],
    )
    series = next(s for s in load_all() if (s.distribution, s.version) == ("sglang", "0.5.9"))
    for patch in series.patches:
        for diff in whatthepatch.parse_patch(patch.diff) if patch.default else ():
            path = site / diff.header.new_path.removeprefix("b/")
            path.write_text("\n".join(whatthepatch.apply_diff(diff, path.read_text().split("\n"))))
    return SourceTree(site)


def test_sglang_0_5_9_unpatched(old: SourceTree) -> None:
    verdicts = judged(old)
    assert verdicts[KIMI].lacking == METHODS
    assert verdicts[KIMI].delegates == (f"self.language_model (DeepseekV3ForCausalLM) has {', '.join(METHODS)}",)
    having = {m: sum(v.methods[m].state == "has" for v in verdicts.values()) for m in METHODS}
    assert len(verdicts) == 178
    assert having == {"set_eagle3_layers_to_capture": 39, "get_embed_and_head": 67, "set_embed_and_head": 57}


def test_kimi_is_complete_after_the_series_and_on_0_5_14(patched: SourceTree, new: SourceTree) -> None:
    assert judged(patched)[KIMI].verdict == "complete"
    assert judged(new)[KIMI].verdict == "complete"


def test_no_class_differs_from_what_importing_it_shows(old: SourceTree, new: SourceTree) -> None:
    for tree, importable in ((old, OLD_IMPORTABLE), (new, NEW_IMPORTABLE)):
        interpreter = tree.root.parents[2] / "bin" / "python"
        script = Path(__file__).with_name("import_classes.py")
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(
            [str(interpreter), "-B", str(script), *METHODS],
            capture_output=True,
            text=True,
            timeout=800,
            env=environment,
            check=False,
        )
        result = json.loads(done.stdout.partition("RESULT")[2])
        real = {name: set(has) for name, has in result.items() if isinstance(has, list)}
        verdicts = judged(tree)
        assert len(real.keys() & verdicts.keys()) == importable
        for name, has in real.items():
            for method in METHODS:
                state = verdicts[name].methods[method].state
                assert state == "unknown" or (state == "has") is (method in has), (name, method)


def test_the_proven_launch_line_on_sm120_unpatched(old: SourceTree) -> None:
    verdicts = launch(old, SM120, ("enable_torch_symm_mem", True))
    fusion = verdicts["enable_flashinfer_allreduce_fusion"]
    assert (fusion.outcome, [str(p) for p in fusion.places]) == (
        Outcome.INERT,
        ["sglang/srt/layers/communicator.py:95"],
    )
    symmetric = verdicts["enable_torch_symm_mem"]
    assert (symmetric.outcome, symmetric.reason) == (Outcome.CRASHES, "KeyError: 12")
    assert [p.line for p in symmetric.places] == [83]
    assert (
        "max_running_requests becomes 48 (sglang/srt/server_args.py:2363)" in verdicts["speculative_algorithm"].reason
    )
    custom = verdicts["disable_custom_all_reduce"]
    assert custom.outcome is Outcome.EFFECTIVE and "CustomAllreduce switches itself off as well" in custom.reason
    assert verdicts["attention_backend"].outcome is Outcome.EFFECTIVE
    rest = {v.outcome for name, v in verdicts.items() if name.startswith(("speculative", "mem_", "cuda_", "trust"))}
    assert rest == {Outcome.EFFECTIVE}


def test_symmetric_memory_declines_after_the_patch_without_multicast(patched: SourceTree) -> None:
    verdict = launch(patched, SM120, ("enable_torch_symm_mem", True))["enable_torch_symm_mem"]
    assert verdict.outcome is Outcome.INERT
    assert "TorchSymmMemCommunicator switches itself off" in verdict.reason
    lines = (patched.root / verdict.places[0].path).read_text().splitlines()
    assert "multicast_ptr == 0" in lines[verdict.places[0].line - 1]
    joined = launch(patched, parse_target("120", 8, True), ("enable_torch_symm_mem", True))["enable_torch_symm_mem"]
    assert joined.outcome is Outcome.EFFECTIVE
    unsaid = launch(patched, parse_target("120", 8, None), ("enable_torch_symm_mem", True))["enable_torch_symm_mem"]
    assert unsaid.outcome is Outcome.UNKNOWN


def test_fusion_is_effective_on_sm90(old: SourceTree) -> None:
    verdict = launch(old, SM90)["enable_flashinfer_allreduce_fusion"]
    assert verdict.outcome is Outcome.EFFECTIVE
    assert "not is_dp_attention_enabled()" in verdict.conditions


def test_fusion_is_refused_by_0_5_14_on_sm120(new: SourceTree) -> None:
    verdict = launch(new, SM120)["enable_flashinfer_allreduce_fusion"]
    assert verdict.outcome is Outcome.REFUSED
    assert "requires SM90 or SM10X" in verdict.reason
    assert verdict.places[0].path == "sglang/srt/layers/flashinfer_comm_fusion.py"


@pytest.mark.parametrize(
    ("backend", "target", "outcome", "words"),
    [
        ("fa3", SM120, Outcome.REFUSED, "sgl_kernel/flash_ops.abi3.so has code for sm_80, sm_86, sm_90a only"),
        ("fa3", SM90, Outcome.EFFECTIVE, ""),
        ("fa4", SM120, Outcome.REFUSED, "Unsupported compute capability"),
        ("fa4", SM90, Outcome.EFFECTIVE, ""),
        ("trtllm_mla", SM90, Outcome.REFUSED, "only supported on Blackwell"),
        ("trtllm_mla", SM120, Outcome.EFFECTIVE, ""),
        ("flashinfer", SM120, Outcome.EFFECTIVE, ""),
        ("triton", SM120, Outcome.EFFECTIVE, ""),
        ("flashmla", SM120, Outcome.CRASHES, "sgl_kernel/flashmla_ops.abi3.so has code for"),
        (None, SM120, Outcome.EFFECTIVE, "triton is chosen"),
        (None, SM90, Outcome.EFFECTIVE, "fa3 is chosen"),
    ],
)
def test_attention_backends(old: SourceTree, backend: str | None, target: Target, outcome: Outcome, words: str) -> None:
    options = {
        **dict(LAUNCH_LINE),
        "attention_backend": backend,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": 3,
    }
    profile = Profile(KIMI, target, tuple((n, v) for n, v in options.items() if v is not None))
    verdict = judge_attention(old, profile, read_coverage(old))
    assert (verdict.outcome, words in verdict.reason) == (outcome, True), verdict


def test_flashinfer_leaves_sm120_out_of_its_fused_all_reduce(old: SourceTree) -> None:
    gates = [g for g in find_gates(old, SM120) if g.place.path == "flashinfer/jit/comm.py"]
    assert [(g.place.line, g.text, g.consequence, g.function) for g in gates] == [
        (60, "supported_major_versions=[9, 10]", Consequence.REFUSAL, "gen_trtllm_comm_module")
    ]
    assert not [g for g in find_gates(old, SM90) if g.place.path == "flashinfer/jit/comm.py"]


def test_the_findings(old: SourceTree) -> None:
    profile = Profile(KIMI, SM120, (*LAUNCH_LINE, ("enable_torch_symm_mem", True)))
    findings = check_sglang(old.root, [SM120], models=[KIMI], profiles=[profile])
    assert {(f.check, f.severity) for f in findings} == {
        (EAGLE, Severity.ERROR),
        (GATE, Severity.WARNING),
        (GATE, Severity.INFO),
        (LAUNCH, Severity.WARNING),
        (LAUNCH, Severity.ERROR),
    }
    assert {f.distribution for f in findings} == {"sglang==0.5.9", "sgl-kernel==0.3.21", "flashinfer-python==0.6.4"}
    crash = [f.object for f in findings if f.check == GATE and f.severity is Severity.WARNING]
    assert crash == ["sglang/srt/distributed/device_communicators/torch_symm_mem.py"]


def test_a_checkout_is_judged_as_far_as_it_goes(old: SourceTree, tmp_path: Path) -> None:
    shutil.copytree(
        old.root / "sglang" / "srt", tmp_path / "sglang" / "srt", ignore=shutil.ignore_patterns("*.so", "*.json")
    )
    (tmp_path / "sglang" / "srt" / "layers" / "communicator.py").write_text("def is_sm90_supported(:\n")
    tree = SourceTree(tmp_path)
    assert judged(tree)[KIMI].lacking == METHODS
    verdicts = launch(tree, SM120, ("enable_torch_symm_mem", True))
    symmetric = verdicts["enable_torch_symm_mem"]
    assert (symmetric.outcome, "may raise KeyError: 12" in symmetric.reason) == (Outcome.UNKNOWN, True)
    assert verdicts["enable_flashinfer_allreduce_fusion"].outcome is Outcome.UNKNOWN
    said = [f.message for f in check_sglang(tmp_path, [SM120]) if f.check == SOURCE]
    assert ["no dist-info folder" in said[0], "communicator.py does not parse in line 1" in said[1]] == [True, True]
