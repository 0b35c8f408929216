"""From profile and models to a command line, and what is refused on the way."""

from pathlib import Path

import pytest

from abi_checks.errors import SourceError, UsageError
from stack.definition import load_definition, stack_names
from stack.serve.launch import Launch, merge_options
from stack.serve.plan import choose_models, make_launch, profile_options, stack_environment, toolkit_findings
from tests.stack.serve.conftest import CHAIN


@pytest.mark.parametrize("stack", stack_names())
def test_every_stack_has_the_profiles(stack):
    profiles = {profile.name: profile for profile in load_definition(stack).profiles}
    assert {"baseline", "eagle3", "eagle3-chain"} <= set(profiles)
    assert "--speculative-algorithm" not in dict(profiles["baseline"].options)
    for name, profile in profiles.items():
        if name.startswith("eagle3"):
            assert dict(profile.options)["--speculative-algorithm"] == "EAGLE3"


def test_the_proven_launch_line():
    options = profile_options("cu130", "eagle3-fusion", [])
    launch = Launch(Path("/env/bin/python"), Path("/target"), Path("/draft"), options, 8, 30000)
    assert " ".join(launch.command()[3:]) == (
        "--model-path /target --host 127.0.0.1 --port 30000 --tp 8 --speculative-draft-model-path /draft "
        "--trust-remote-code --attention-backend flashinfer --cuda-graph-max-bs 128 --disable-custom-all-reduce "
        "--mem-fraction-static 0.88 --enable-flashinfer-allreduce-fusion --speculative-algorithm EAGLE3 "
        "--speculative-num-steps 2 --speculative-eagle-topk 4 --speculative-num-draft-tokens 16"
    )
    assert (launch.speculative, launch.steps) == (True, 2)


def test_a_list_of_numbers_is_a_word_each_and_other_text_is_one():
    options = (("cuda-graph-bs", "1 2 16"), ("json-model-override-args", '{"a": 1}'), ("flag", ""), ("n", "3"))
    words = Launch(Path("/env/bin/python"), Path("/t"), None, options, 1, 1).command()
    assert words[words.index("--cuda-graph-bs") :] == [
        *("--cuda-graph-bs", "1", "2", "16", "--json-model-override-args", '{"a": 1}', "--flag", "--n", "3")
    ]


def test_changes_of_a_profile():
    profile = (("--a", "1"), ("--flag", ""))
    assert merge_options(profile, ["a=2", "no:flag", "b", "--c=x=y"]) == (("a", "2"), ("b", ""), ("c", "x=y"))
    with pytest.raises(UsageError, match="has no option 'z'"):
        merge_options(profile, ["no:z"])
    with pytest.raises(UsageError, match="must be NAME=VALUE"):
        merge_options(profile, ["=3"])


def test_an_unknown_profile_names_the_others():
    with pytest.raises(UsageError, match="has no profile 'fast'; it has: baseline, eagle3"):
        profile_options("cu130-pypi", "fast", [])


def test_draft_and_profile_must_agree(models):
    python = Path("/env/bin/python")
    with pytest.raises(UsageError, match="there is no draft model"):
        make_launch(python, choose_models(str(models), None, False), CHAIN, 1, 1)
    with pytest.raises(UsageError, match="the profile does not speculate"):
        make_launch(python, choose_models(str(models), "two-token", True), (), 1, 1)
    with pytest.raises(UsageError, match="no draft 'x' among these models; there are: full-0"):
        choose_models(str(models), "x", True)
    with pytest.raises(UsageError, match="at least one GPU"):
        make_launch(python, choose_models(str(models), None, False), (), 0, 1)


def test_models_that_are_not_there(tmp_path):
    with pytest.raises(SourceError, match="there is no such folder"):
        choose_models(str(tmp_path / "x"), None, False)


def test_synthetic_models_are_made_once(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = choose_models("synthetic", None, True)
    stamp = first.target.stat().st_ctime_ns
    assert first.draft is not None and first.draft.name == "full-0.8"
    assert choose_models("synthetic", None, False).target.stat().st_ctime_ns == stamp


def test_no_stack_and_no_environment(tmp_path):
    with pytest.raises(SourceError, match="no build of cu130-pypi is in use there"):
        stack_environment(tmp_path, "cu130-pypi", None)
    with pytest.raises(SourceError, match="no bin/python in it"):
        stack_environment(tmp_path, None, tmp_path)


def test_a_toolkit_that_is_not_there(models, tmp_path, monkeypatch):
    launch = make_launch(tmp_path / "bin" / "python", choose_models(str(models), None, False), (), 1, 1)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    (finding,) = toolkit_findings(launch)
    assert finding.message == f"CUDA_HOME is {tmp_path} and there is no bin/nvcc in it"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvcc").write_text("")
    assert toolkit_findings(launch) == ()
