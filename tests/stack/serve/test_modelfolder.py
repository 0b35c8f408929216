"""Model folders that a server would only choke on later."""

import json
import shutil

import pytest

from abi_checks.errors import SourceError
from stack.serve.modelfolder import check_model_folder, check_pair


@pytest.fixture
def target(models, tmp_path):
    return shutil.copytree(models / "target", tmp_path / "target")


def change(path, **values):
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def fault(folder):
    with pytest.raises(SourceError) as caught:
        check_model_folder(folder)
    return str(caught.value)


def test_a_whole_folder_passes(target):
    check_model_folder(target)


def test_nothing_there(tmp_path):
    assert "the model's configuration cannot be read: No such file" in fault(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert "no *.safetensors files" in fault(tmp_path)


@pytest.mark.parametrize(("text", "said"), [("{", "is not valid JSON"), ("[]", "is not a JSON object")])
def test_a_broken_configuration(target, text, said):
    (target / "config.json").write_text(text)
    assert said in fault(target)


def test_a_missing_shard(target):
    (target / "model-00004-of-00009.safetensors").unlink()
    assert "1 of 9 weight files are missing, model-00004-of-00009.safetensors first" in fault(target)


@pytest.mark.parametrize("keep", [0, 5, 100, -1])
def test_a_shard_cut_short(target, keep):
    path = target / "model-00001-of-00009.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    assert str(path) in fault(target)


def test_a_shard_that_is_something_else(target):
    (target / "model-00001-of-00009.safetensors").write_bytes(b"\x02" + bytes(7) + b"[]" + bytes(50))
    assert "its header is not that of a safetensors file" in fault(target)


def test_a_configuration_of_another_model(target):
    change(target / "config.json", hidden_size=4096)
    assert "has an embedding of 320 x 4096 (vocab_size x hidden_size), the weights 320 x 320" in fault(target)


def test_layers_that_are_not_there(target):
    change(target / "config.json", num_hidden_layers=12)
    assert "announces 12 layers and the weights have 8" in fault(target)


def test_an_index_without_a_map(target):
    (target / "model.safetensors.index.json").write_text("{}")
    assert "has no 'weight_map'" in fault(target)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"hidden_size": 4096}, "a target of hidden size 4096, and "),
        ({"target_hidden_size": 7168}, "a target of hidden size 7168, and "),
        ({"vocab_size": 32000}, "a target of vocabulary 32000, and "),
    ],
)
def test_a_draft_for_another_target(models, target, tmp_path, values, said):
    draft = shutil.copytree(models / "drafts" / "two-token", tmp_path / "draft")
    check_pair(target, draft)
    change(draft / "config.json", **values)
    with pytest.raises(SourceError, match=said):
        check_pair(target, draft)
    change(draft / "config.json", architectures=["LlamaForCausalLM"])
    check_pair(target, draft)
