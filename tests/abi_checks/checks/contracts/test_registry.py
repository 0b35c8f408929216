"""Classes of a small registry against the contract of small workers."""

from pathlib import Path

import pytest

from abi_checks.checks.contracts import check_sglang
from abi_checks.checks.contracts.eagle import read_contract
from abi_checks.checks.contracts.registry import ClassJudge, ClassVerdict, read_registry
from abi_checks.findings import Severity
from tests.abi_checks.checks.contracts.trees import tree

SPEC_INFO = """
    from enum import Enum, auto
    class SpeculativeAlgorithm(Enum):
        EAGLE = auto()
        EAGLE3 = auto()
        def is_eagle3(self):
            return self == SpeculativeAlgorithm.EAGLE3
        def create_worker(self, server_args):
            if server_args.enable_multi_layer_eagle:
                raise ValueError("not here")
            from sglang.srt.speculative.worker import Worker
            return Worker
"""
WORKER = """
    class Worker:
        def __init__(self, target_worker):
            self.target_worker = target_worker
            embed, head = self.target_worker.model_runner.model.get_embed_and_head()
            draft = self.draft_runner.model
            if self.speculative_algorithm.is_eagle3():
                if hasattr(draft, "shared") and draft.shared:
                    draft.set_embed_and_head(embed, head)
                else:
                    draft.set_embed(embed)
            else:
                draft.set_embed_and_head(embed, head)
"""
RUNNER = """
    class ModelRunner:
        def initialize(self):
            self.model.load_weights(None)
            if self.eagle_use_aux_hidden_state:
                self.model.set_eagle3_layers_to_capture(self.layer_ids)
"""
GOOD = """
    import torch.nn as nn
    class Mixin:
        def get_embed_and_head(self):
            return self.embed, self.head
        def set_embed_and_head(self, embed, head):
            self.embed = embed
    class Good(Mixin, nn.Module):
        def set_eagle3_layers_to_capture(self, layer_ids=None):
            self.layers = layer_ids
    EntryClass = Good
"""


def judged(root: Path, models: dict[str, str | bytes]) -> dict[str, ClassVerdict]:
    files: dict[str, str | bytes] = {
        "sglang/srt/speculative/spec_info.py": SPEC_INFO,
        "sglang/srt/speculative/worker.py": WORKER,
        "sglang/srt/model_executor/model_runner.py": RUNNER,
        **{f"sglang/srt/models/{name}.py": text for name, text in models.items()},
    }
    sources = tree(root, files)
    contract = read_contract(sources)
    assert contract.gaps == ()
    judge = ClassJudge(sources, contract)
    return {v.name: v for v in map(judge.judge, read_registry(sources).classes)}


def test_the_contract_is_read_from_the_workers(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {
        "sglang/srt/speculative/spec_info.py": SPEC_INFO,
        "sglang/srt/speculative/worker.py": WORKER,
        "sglang/srt/model_executor/model_runner.py": RUNNER,
    }
    contract = read_contract(tree(tmp_path, files))
    assert {name: contract.roles(name) for name in contract.methods()} == {
        "get_embed_and_head": ("target",),
        "set_eagle3_layers_to_capture": ("target",),
        "set_embed_and_head": ("draft",),
    }
    conditional = {(r.algorithm, r.name): r.conditions for r in contract.requirements if r.conditions and r.is_call}
    assert conditional[("EAGLE3", "set_embed")] == ("not (hasattr(draft, 'shared') and draft.shared)",)
    assert not any(r.name == "load_weights" for r in contract.requirements)


def test_models_that_are_handed_on_are_followed(tmp_path: Path) -> None:
    """As SGLang 0.5.23 does: by position and by name, through several functions, imported where they are used."""
    worker = """
        class Worker:
            def __init__(self, target_worker):
                from sglang.srt.speculative.embeddings import resolve
                embed, head = resolve(self.draft_runner.model, target_model=target_worker.model_runner.model)
                share(self.draft_runner.model, embed, head)
                if self.other: share(self.draft_runner.other, embed, head)
                unpacked(*self.more, self.draft_runner.model)
        def share(model, embed, head):
            model.set_embed_and_head(embed, head)
        def unpacked(model, other):
            other.never()
    """
    embeddings = """
        def resolve(draft, /, *, target_model):
            return _resolve(target_model, draft)
        def _resolve(target, draft=None):
            if draft is not None and hasattr(target, "get_for_draft"):
                return target.get_for_draft()
            if draft.deeper:
                return _resolve(target, draft)
            again = target
            return again.get_embed_and_head()
        def nobody_calls_it(target_model):
            target_model.never()
    """
    runner = """
        from sglang.srt.model_executor.capture import capture, load
        class ModelRunner:
            def initialize(self):
                load(self.model)
                capture(model=self.model, eagle_use_aux_hidden_state=self.eagle_use_aux_hidden_state)
    """
    capture = """
        def load(model):
            model.load_weights(None)
        def capture(*, model, eagle_use_aux_hidden_state, dflash=False):
            if eagle_use_aux_hidden_state:
                if not hasattr(model, "set_eagle3_layers_to_capture"):
                    raise ValueError(model.__class__.__name__)
                model.set_eagle3_layers_to_capture([1])
            if dflash:
                model.set_dflash_layers_to_capture([1])
    """
    files: dict[str, str | bytes] = {
        "sglang/srt/speculative/spec_info.py": SPEC_INFO,
        "sglang/srt/speculative/worker.py": worker,
        "sglang/srt/speculative/embeddings.py": embeddings,
        "sglang/srt/model_executor/model_runner.py": runner,
        "sglang/srt/model_executor/capture.py": capture,
    }
    contract = read_contract(tree(tmp_path, files))
    assert contract.gaps == ()
    places = {name: {(use.role, str(use.place)) for use in uses} for name, uses in contract.methods().items()}
    assert places == {
        "get_embed_and_head": {("target", "sglang/srt/speculative/embeddings.py:10")},
        "set_eagle3_layers_to_capture": {("target", "sglang/srt/model_executor/capture.py:8")},
        "set_embed_and_head": {("draft", "sglang/srt/speculative/worker.py:10")},
    }
    found = {use.conditions for use in contract.requirements if use.name == "get_for_draft"}
    assert ("draft is not None", "hasattr(target, 'get_for_draft')") in found


def test_a_worker_of_another_platform_is_not_asked_for(tmp_path: Path) -> None:
    before = """\
        def get_platform_worker_cls(self):
            from sglang.srt.platforms import current_platform
            return current_platform.worker() if current_platform.is_out_of_tree() else None
        def create_worker(self, server_args):
            other = self.get_platform_worker_cls()
            if other is not None:
                return other
"""
    spec_info = SPEC_INFO.replace("        def create_worker(self, server_args):\n", before)
    files: dict[str, str | bytes] = {
        "sglang/srt/speculative/spec_info.py": spec_info,
        "sglang/srt/speculative/worker.py": WORKER,
        "sglang/srt/model_executor/model_runner.py": RUNNER,
        "sglang/srt/platforms.py": "import os\ncurrent_platform = os.environ['PLATFORM']\n",
    }
    contract = read_contract(tree(tmp_path, files))
    assert contract.gaps == () and len(contract.workers) == 1


@pytest.mark.filterwarnings("error")
def test_doubtful_escapes_in_the_source_are_not_talked_about(tmp_path: Path) -> None:
    source = GOOD.replace("class Mixin:", "class Mixin:\n        pattern = '\\.'")
    assert r"'\.'" in source and judged(tmp_path, {"good": source})["Good"].verdict == "complete"


def test_a_contract_that_is_not_read_in_full_proves_no_class_complete(tmp_path: Path) -> None:
    """Here the worker may be one that the source does not settle."""
    other = "            if server_args.platform_worker: return server_args.platform_worker\n"
    create = "        def create_worker(self, server_args):\n"
    files: dict[str, str | bytes] = {
        "sglang/srt/speculative/spec_info.py": SPEC_INFO.replace(create, create + other),
        "sglang/srt/speculative/worker.py": WORKER,
        "sglang/srt/model_executor/model_runner.py": RUNNER,
        "sglang/srt/models/good.py": GOOD,
        "sglang/srt/models/bad.py": "import torch.nn as nn\nclass Bad(nn.Module):\n    pass\nEntryClass = Bad\n",
    }
    sources = tree(tmp_path, files)
    contract = read_contract(sources)
    (gap,) = contract.gaps
    assert gap.startswith("create_worker may return something that is not followed")
    verdicts = {v.name: v for v in map(ClassJudge(sources, contract).judge, read_registry(sources).classes)}
    assert all(method.state == "has" for method in verdicts["Good"].methods.values())
    assert (verdicts["Good"].verdict, verdicts["Bad"].verdict) == ("unknown", "lacking")
    findings = check_sglang(sources.root, [], models=["Good"])
    (of_class,) = (finding for finding in findings if finding.message.startswith("Good"))
    assert of_class.severity is Severity.UNKNOWN
    assert of_class.evidence[0] == f"not known of the calls: {gap}"


def test_methods_from_mixins_and_other_modules_count(tmp_path: Path) -> None:
    child = """
        from sglang.srt.models.good import Good as Base
        class Child(Base):
            pass
        EntryClass = [Child]
    """
    verdicts = judged(tmp_path, {"good": GOOD, "child": b"\xef\xbb\xbf" + child.replace("\n        ", "\n").encode()})
    assert {name: v.verdict for name, v in verdicts.items()} == {"Good": "complete", "Child": "complete"}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("    def set_eagle3_layers_to_capture(self): pass", "its body is empty"),
        ("    def set_eagle3_layers_to_capture(self): self.x = 1", "takes at most 0 arguments, not 1"),
        ("    def set_eagle3_layers_to_capture(self, a, b): self.x = 1", "needs b as well"),
        ("    def set_eagle3_layers_to_capture(self, a): raise NotImplementedError", "only raises NotImplementedError"),
        ("    pass", "not defined"),
    ],
)
def test_a_name_alone_is_not_enough(tmp_path: Path, body: str, reason: str) -> None:
    head = "import torch.nn as nn\nfrom sglang.srt.models.good import Mixin\nclass M(Mixin, nn.Module):\n"
    source = f"{head}{body}\nEntryClass = M\n"
    verdict = judged(tmp_path, {"good": GOOD, "m": source})["M"]
    assert verdict.lacking == ("set_eagle3_layers_to_capture",)
    assert reason in verdict.methods["set_eagle3_layers_to_capture"].reason


def test_delegation_is_as_good_as_the_delegate(tmp_path: Path) -> None:
    source = """
        import torch.nn as nn
        from sglang.srt.models.good import Good, Mixin
        class Half(Mixin, nn.Module):
            pass
        class Wrapper(Mixin, nn.Module):
            def __init__(self):
                self.inner = Half()
            def set_eagle3_layers_to_capture(self, ids=None):
                self.inner.set_eagle3_layers_to_capture(ids)
        class Bare(nn.Module):
            def __init__(self):
                self.language_model = Good()
        EntryClass = [Wrapper, Bare]
    """
    verdicts = judged(tmp_path, {"good": GOOD, "w": source})
    assert verdicts["Wrapper"].lacking == ("set_eagle3_layers_to_capture",)
    assert "self.inner (Half)" in verdicts["Wrapper"].methods["set_eagle3_layers_to_capture"].reason
    assert len(verdicts["Bare"].lacking) == 3
    assert verdicts["Bare"].delegates[0].startswith("self.language_model (Good) has get_embed_and_head")


def test_what_cannot_be_seen_is_unknown(tmp_path: Path) -> None:
    source = """
        import torch.nn as nn
        from elsewhere import Foreign
        class Dynamic(nn.Module):
            def __getattr__(self, name):
                return getattr(self.inner, name)
        class Outside(Foreign):
            pass
        class Computed(make_base()):
            pass
        EntryClass = [Dynamic, Outside, Computed]
    """
    verdicts = judged(tmp_path, {"m": source})
    assert {name: v.verdict for name, v in verdicts.items()} == dict.fromkeys(
        ("Dynamic", "Outside", "Computed"), "unknown"
    )
    assert "__getattr__" in verdicts["Dynamic"].methods["get_embed_and_head"].reason
    assert "elsewhere.Foreign" in verdicts["Outside"].methods["get_embed_and_head"].reason


def test_a_syntax_error_is_a_gap_and_the_rest_is_judged(tmp_path: Path) -> None:
    sources = tree(
        tmp_path,
        {"sglang/srt/models/good.py": GOOD, "sglang/srt/models/broken.py": "class X(:\nEntryClass = X\n"},
    )
    registry = read_registry(sources)
    assert [c.node.name for c in registry.classes] == ["Good"]
    assert registry.gaps == ("sglang/srt/models/broken.py does not parse",)
    assert sources.unreadable[0].path == "sglang/srt/models/broken.py" and "line 1" in sources.unreadable[0].reason
