"""The recorded GPU runs fit the schema, hold what is claimed of them, and are diagnosed as claimed."""

import json
import re
import signal
from pathlib import Path

import jsonschema
import pytest

from stack.serve.diagnose import diagnose
from stack.serve.report import SCHEMA
from stack.synthetic.llama import Shape
from stack.synthetic.models import Draft, SyntheticModels
from stack.synthetic.orbit import DraftForm

FOLDER = Path(__file__).parents[3] / "docs" / "evidence" / "boot"
README = (FOLDER / "README.md").read_text()
BOOT_GUIDE = FOLDER.parents[1] / "boot.md"


def boots(name):
    document = json.loads((FOLDER / name).read_text())
    jsonschema.validate(document, json.loads(SCHEMA.read_text()))
    return {boot["name"]: boot for boot in document["boots"]}


def mean(boot, field):
    return sum(answer[field] for answer in boot["answers"]) / len(boot["answers"])


def row(name, boot):
    """A line of the tables in README.md."""
    lengths = ["–", "–"]
    if boot["answers"][0]["verifications"] is not None:
        lengths = [f"{mean(boot, 'predicted_accept_length'):.4f}", f"{mean(boot, 'accept_length'):.4f}"]
    return f"| {name} | {lengths[0]} | {lengths[1]} | {boot['seconds_to_ready']:.0f} |"


def assert_as_predicted(title, boot, baseline):
    assert boot["outcome"] == "passed" and len(boot["answers"]) == 16, title
    for answer, plain in zip(boot["answers"], baseline["answers"], strict=True):
        assert answer["tokens"] == answer["predicted_tokens"] == plain["tokens"]
        assert answer["verifications"] == answer["predicted_verifications"]
        assert answer["accept_length"] == answer["predicted_accept_length"]
    assert row(title, boot) in README
    assert {gpu["name"] for gpu in boot["gpus"]} == {"NVIDIA H200"}
    assert not [setting for setting in boot["settings"] if setting["verdict"] not in ("same", "chosen")]


@pytest.mark.parametrize(
    ("name", "count"),
    [("one_gpu.json", 21), ("two_gpus.json", 21), ("kimi_k25.json", 4), ("nox_sessions.json", 3)],
)
def test_every_boot_is_lossless_and_as_predicted(name, count):
    held = boots(name)
    assert len(held) == count
    baseline = next(
        boot for boot in held.values() if not boot["answers"] or boot["answers"][0]["verifications"] is None
    )
    for title, boot in held.items():
        assert_as_predicted(title, boot, baseline)
        assert boot["versions"]["sglang"] == "0.5.14" and boot["versions"]["torch"] == "2.11.0"
        assert len(boot["gpus"]) == (2 if name == "two_gpus.json" else 1)


def test_the_adaptive_profile_changes_its_steps_and_no_answer():
    baseline, adaptive = boots("eagle3_adaptive.json").values()
    assert (baseline["outcome"], adaptive["outcome"]) == ("passed", "passed")
    assert "--speculative-adaptive" in adaptive["command"] and len(adaptive["answers"]) == 16
    for answer, plain in zip(adaptive["answers"], baseline["answers"], strict=True):
        assert answer["tokens"] == answer["predicted_tokens"] == plain["tokens"]
        assert answer["predicted_accept_length"] is None
    assert f"| eagle3-adaptive | {mean(adaptive, 'accept_length'):.4f} | {adaptive['seconds_to_ready']:.0f} |" in README
    assert f"| baseline | – | {baseline['seconds_to_ready']:.0f} |" in README


def asked(boot, option):
    return boot["command"][boot["command"].index(f"--{option}") + 1]


def test_two_gpus_ran_what_one_gpu_ran():
    """The same drafts and steps, and the same tokens and verifications, tensor parallel."""
    one, two = boots("one_gpu.json"), boots("two_gpus.json")
    assert list(one) == list(two)
    for title, boot in two.items():
        assert asked(boot, "tp") == "2" and "--disable-custom-all-reduce" in boot["command"]
        for split, whole in zip(boot["answers"], one[title]["answers"], strict=True):
            assert split["tokens"] == whole["tokens"] and split["verifications"] == whole["verifications"]


def test_the_nox_sessions_ran_their_default_profiles():
    held = boots("nox_sessions.json")
    assert list(held) == ["boot_baseline-baseline", "boot_eagle3-baseline", "boot_eagle3-eagle3"]
    assert {asked(boot, "cuda-graph-max-bs-decode") for boot in held.values()} == {"128"}
    tree = held["boot_eagle3-eagle3"]
    numbers = [asked(tree, f"speculative-{what}") for what in ("num-steps", "eagle-topk", "num-draft-tokens")]
    assert numbers == ["2", "4", "16"]
    log = (FOLDER / "logs" / "nox-boot-eagle3-tree.log").read_text()
    assert (
        "num_tokens_per_bs=16, bs=[1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32, 40, 44, 48]"
        in log
    )


def test_sglang_0_5_9_fails_as_released_and_serves_with_the_methods():
    held = boots("sglang_0_5_9.json")
    environments, profiles = ("released", "patched", "methods-only"), ("baseline", "eagle3-chain")
    assert list(held) == [f"{name}-{profile}" for name in environments for profile in profiles]
    for title, boot in held.items():
        assert boot["versions"]["sglang"] == "0.5.9" and boot["versions"]["torch"] == "2.9.1"
        assert boot["command"][0] == f"ENV/{title.removesuffix('-baseline').removesuffix('-eagle3-chain')}/bin/python"
        contract = [finding for finding in boot["findings"] if finding["check"] == "eagle3-contract"]
        if title != "released-eagle3-chain":
            assert not contract
            assert_as_predicted(title, boot, held["released-baseline"])
            if title.endswith("eagle3-chain"):
                assert mean(boot, "accept_length") == 4
            continue
        assert (boot["outcome"], boot["seconds_to_ready"], boot["answers"]) == ("failed", None, [])
        (said,) = contract
        lacking = "lacks get_embed_and_head, set_eagle3_layers_to_capture, set_embed_and_head"
        assert said["message"] == f"KimiK25ForConditionalGeneration {lacking}" and said["severity"] == "error"
        assert boot["diagnosis"]["cause"] == "eagle-contract"
        assert boot["diagnosis"]["facts"]["attribute"] == "set_eagle3_layers_to_capture"
        assert f"| {title} | – | failed: `eagle-contract` | – |" in README


def test_the_failure_on_0_5_9_is_said_by_the_check_that_foretold_it():
    found = diagnose(FOLDER / "logs" / "sglang-0-5-9-released-eagle3.log")
    assert (found.failed, found.cause, found.check_id, found.notes) == (True, "eagle-contract", "eagle3-contract", ())
    assert found.excerpt[0].text.endswith("object has no attribute 'set_eagle3_layers_to_capture'")


def test_the_predictions_are_those_of_today():
    """The files hold predictions; the present code makes the same ones from the shape, seed and draft alone."""
    drafts = {"two-token": Draft(DraftForm.TWO_TOKEN)}
    drafts |= {f"full-{share:g}": Draft(DraftForm.FULL, share) for share in (0.0, 0.5, 0.8, 1.0)}
    models = SyntheticModels("llama", Shape(8, 512, 1024, 512), 0, tuple(drafts.values()))
    seen = set()
    for title, boot in boots("one_gpu.json").items():
        draft, _, steps = title.partition("-steps-")
        for answer in boot["answers"]:
            predicted = models.predict(answer["prompt"][-1], 64, int(steps or 0), drafts.get(draft))
            assert list(predicted.tokens) == answer["tokens"]
            if steps:
                assert predicted.verifications == answer["verifications"]
        seen.add((draft, steps))
    assert seen == {("baseline", "")} | {(draft, steps) for draft in drafts for steps in "1237"}


@pytest.mark.parametrize(("name", "counts"), [("one_gpu.json", (13, 8)), ("two_gpus.json", (10, 11))])
def test_a_warm_cache_starts_in_time(name, counts):
    """After the first wave of boots had compiled the kernels, every boot was ready within 100 s."""
    seconds = sorted(boot["seconds_to_ready"] for boot in boots(name).values())
    warm, cold = [s for s in seconds if s < 100], [s for s in seconds if s >= 100]
    assert (len(warm), len(cold)) == counts
    assert f"{min(warm):.0f} to {max(warm):.0f} s" in README
    assert f"{min(cold):.0f} to {max(cold):.0f} s" in README
    assert f"{min(warm):.0f} to {max(warm):.0f} s" in BOOT_GUIDE.read_text()


CAUSES = {
    "wide-head-workspace": "flashinfer-workspace",
    "wrong-cuda-home": "nvcc-missing",
    "backend-without-code": "backend-needs-other-gpu",
    "draft-of-wrong-shape": "weights-shape",
    "adaptive-step-outside": "adaptive-steps",
    "scheduler-killed": "child-killed",
}


@pytest.mark.parametrize(("case", "cause"), CAUSES.items())
def test_failures_are_called_by_their_cause(case, cause):
    assert boots("failures.json")[case]["outcome"] == "failed"
    found = diagnose(FOLDER / "logs" / f"{case}.log")
    assert (found.failed, found.cause) == (True, cause)
    assert f"| {case} |" in README and f"`{cause}`" in README


def test_what_a_server_does_without_is_not_why_it_was_killed():
    found = diagnose(FOLDER / "logs" / "scheduler-killed-without-cuda-tile.log")
    assert (found.failed, found.cause) == (True, "child-killed")
    assert found.notes == ("also seen, line 6: distribution-missing",)


def test_the_remedy_of_the_workspace_overflow_works():
    boot = boots("failures.json")["wide-head-workspace-remedied"]
    assert boot["outcome"] == "passed"
    assert boot["environment"]["SGLANG_FLASHINFER_WORKSPACE_SIZE"] == str(1 << 30)
    assert all(a["verifications"] == a["predicted_verifications"] for a in boot["answers"])


def test_refusals_name_who_is_in_the_way():
    said = {row["case"]: row for row in json.loads((FOLDER / "refusals.json").read_text())}
    assert "cannot be used: process N (" in said["port-taken"]["said"]
    assert "GPU memory is held by others: GPU 0: 62.9 of 140.4 GiB" in said["gpu-memory-taken"]["said"]
    assert {row["exit"] for row in said.values()} == {2}


def test_logs_show_the_servers_ready():
    for name in (
        "baseline",
        "full-0.8-steps-3",
        "two-gpus-full-1-steps-3",
        "nox-boot-eagle3-tree",
        "sglang-0-5-9-patched-eagle3",
        "wide-head-workspace-remedied",
    ):
        assert "The server is fired up and ready to roll!" in (FOLDER / "logs" / f"{name}.log").read_text()
        found = diagnose(FOLDER / "logs" / f"{name}.log")
        assert (found.failed, found.cause, found.notes) == (False, "unknown", ())


def test_what_a_server_survived_is_told_and_is_no_failure():
    found = diagnose(FOLDER / "logs" / "kimi-k25-triton-eagle3-chain.log")
    assert (found.failed, found.cause) == (False, "library-missing")
    assert found.notes == ("the server became ready afterwards, so this did not stop it",)


def test_nothing_of_the_machine_is_left_in_the_files():
    for path in FOLDER.rglob("*"):
        if path.is_file():
            assert not re.search(r"/(?:root|tmp|work|home)/|\bpid=\d|server process \[\d", path.read_text()), path
            assert path.stat().st_size < 600_000


@pytest.mark.parametrize(
    ("name", "count", "signals"),
    [("interrupts", 50, ["SIGINT", "SIGTERM"]), ("interrupts_compiling", 24, ["SIGINT", "SIGTERM", "SIGHUP"])],
)
def test_interrupted_boots_left_nothing(name, count, signals):
    held = json.loads((FOLDER / f"{name}.json").read_text())
    outcomes = held["outcomes"]
    assert held["boots"] == held["clean"] == len(outcomes) == count
    assert not held["gpu_processes_after"] and held["gpu_memory_after"] == held["gpu_memory_before"]
    assert not held.get("processes_after")
    for outcome in outcomes:
        assert outcome["exit"] == 128 + signal.Signals[outcome["signal"]] and outcome["port_free"]
        assert outcome["processes_left"] == 0
    assert {outcome["signal"] for outcome in outcomes} == set(signals)
    moments = [outcome["after_s"] for outcome in outcomes]
    assert f"{count} boots" in README and f"after {min(moments)} to {max(moments)} s" in README


def test_how_far_the_interrupted_boots_had_come_and_how_soon_they_ended():
    warm, cold = (
        json.loads((FOLDER / f"{name}.json").read_text())["outcomes"] for name in ("interrupts", "interrupts_compiling")
    )
    served = [one for one in warm if re.search("POST|#queue-req", one["reached"])]
    assert len(served) == 4 and all(5 < one["ended_in_s"] < 6 for one in served)
    assert max(one["ended_in_s"] for one in warm if one not in served) < 0.6
    graphs = [one for one in cold if "Capturing batches" in one["reached"]]
    assert f"{len(graphs)} had come to their graphs" in README
    assert f"up to {max(one['processes_before'] for one in cold)} processes" in README
    assert f"{len(warm) + len(cold)} boots interrupted" in BOOT_GUIDE.read_text()
