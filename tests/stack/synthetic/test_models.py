"""What is written: whole folders, of the announced shapes, readable by the libraries that servers use."""

import json
import os
import struct
import subprocess
from pathlib import Path

import pytest

from abi_checks.errors import SourceError, UsageError
from stack.cli import main
from stack.serve.modelfolder import check_model_folder
from stack.synthetic.llama import Shape, attention_margin
from stack.synthetic.models import Draft, SyntheticModels, read_models, write_models
from stack.synthetic.orbit import DraftForm
from stack.synthetic.tensors import bf16, noise

SMALL = SyntheticModels("llama", Shape(8, 320, 64, 320), 1, (Draft(DraftForm.FULL, 0.5), Draft(DraftForm.TWO_TOKEN)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "small"
    write_models(path, SMALL)
    return path


def tensors(path):
    """Name → (dtype, shape, bytes) of a safetensors file."""
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__")
    body = data[8 + length :]
    return {n: (r["dtype"], r["shape"], body[slice(*r["data_offsets"])]) for n, r in header.items()}


def test_description_reads_back(folder):
    assert read_models(folder) == SMALL
    assert sorted(path.name for path in folder.iterdir()) == ["drafts", "synthetic.json", "target"]
    assert sorted(path.name for path in (folder / "drafts").iterdir()) == ["full-0.5", "two-token"]


def test_every_folder_is_whole(folder):
    for part in (folder / "target", folder / "drafts" / "full-0.5", folder / "drafts" / "two-token"):
        check_model_folder(part)


def test_embedding_and_head_say_the_permutation(folder):
    index = json.loads((folder / "target" / "model.safetensors.index.json").read_text())["weight_map"]
    held = tensors(folder / "target" / index["lm_head.weight"])
    dtype, shape, head = held["lm_head.weight"]
    assert (dtype, shape) == ("BF16", [320, 320])
    ones = {(place // 320, place % 320) for place in range(320 * 320) if head[2 * place : 2 * place + 2] == b"\x80\x3f"}
    assert ones == {(SMALL.orbit.successor(token), token) for token in SMALL.orbit.cycle}
    assert head.count(b"\x80\x3f") == len(ones)
    embedding = held["model.embed_tokens.weight"][2]
    for token in range(320):
        row = embedding[token * 640 : token * 640 + 640]
        assert row.index(b"\x80\x3f") == 2 * SMALL.orbit.ordinary(token)


def test_layers_compute_and_add_nothing(folder):
    held = tensors(folder / "target" / "model-00002-of-00009.safetensors")
    assert set(held["model.layers.0.self_attn.o_proj.weight"][2]) == {0}
    assert set(held["model.layers.0.mlp.down_proj.weight"][2]) == {0}
    assert len(set(held["model.layers.0.self_attn.q_proj.weight"][2])) > 100


@pytest.mark.parametrize(("value", "expected"), [(1.0, "803f"), (-1.0, "80bf"), (1 / 3, "ab3e"), (0.0, "0000")])
def test_bf16_rounds_to_nearest(value, expected):
    assert bf16(value).hex() == expected


def test_noise_is_small_seeded_and_of_both_signs():
    data = b"".join(noise("a", (1 << 11, 1 << 11), 1).blocks())
    assert len(data) == 2 << 22
    values = [struct.unpack("<f", b"\0\0" + data[n : n + 2])[0] for n in range(0, 20_000, 2)]
    assert all(2**-7 <= abs(value) < 2**-5 for value in values)
    assert 4000 < sum(value > 0 for value in values) < 6000
    assert data == b"".join(noise("a", (1 << 11, 1 << 11), 1).blocks())
    assert data != b"".join(noise("b", (1 << 11, 1 << 11), 1).blocks())


def test_the_own_position_wins_by_far():
    assert attention_margin(8192) > 50


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--layers", "7"], "three different layers only from 8"),
        (["--hidden", "100"], "multiple of the head size"),
        (["--hidden", "320", "--vocabulary", "512"], "a hidden dimension of its own"),
        (["--vocabulary", "200"], "at least 300 tokens"),
        (["--acceptance", "1.5"], "between 0 and 1"),
        (["--acceptance", "0.5", "0.5"], "asked for twice"),
        (["--intermediate", "0"], "must be positive"),
        (["--layers", "1000000", "--hidden", "8192"], "GB are free"),
    ],
)
def test_sizes_that_cannot_be_are_refused(arguments, said, tmp_path, capsys):
    assert main(["models", "make", str(tmp_path / "x"), *arguments]) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_there_is_left_alone(folder, capsys):
    assert main(["models", "make", str(folder)]) == 2
    assert "is already there" in capsys.readouterr().err
    assert read_models(folder) == SMALL


def test_make_says_what_it_wrote(tmp_path, capsys):
    assert main(["models", "make", str(tmp_path / "x"), "--hidden", "320", "--intermediate", "32", "--two-token"]) == 0
    assert "drafts: full-1, two-token" in capsys.readouterr().out
    assert [draft.name for draft in read_models(tmp_path / "x").drafts] == ["full-1", "two-token"]


def test_a_description_that_is_none(tmp_path):
    (tmp_path / "synthetic.json").write_text("[]")
    with pytest.raises(SourceError, match="is not a description"):
        read_models(tmp_path)
    with pytest.raises(UsageError, match=r"no draft 'x' among these models; there are: full-0\.5, two-token"):
        SMALL.draft("x")


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("stack.synthetic.models.write_shards", full)
    with pytest.raises(SourceError, match="No space left on device"):
        write_models(tmp_path / "x", SMALL)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.environment
def test_the_models_compute_what_is_predicted(folder, built_stack):
    """The target by transformers, the drafts by a transcription of SGLang's class, in bfloat16 on the CPU."""
    script = Path(__file__).with_name("reference.py")
    stack_python = built_stack("cu130-pypi").environment / "bin" / "python"
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    for prompt in (40, 2):
        words = [str(stack_python), str(script), str(folder), str(prompt), "16", "1", "3"]
        done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=250, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        measured = json.loads(done.stdout)
        assert measured["text"].isascii() and measured["text"].isprintable()
        for key, accepted in measured["accepted"].items():
            name, _, steps = key.partition("/")
            predicted = SMALL.predict(prompt, 16, int(steps), SMALL.draft(name))
            assert (list(predicted.tokens), list(predicted.accepted)) == (measured["tokens"], accepted), key
        assert set(measured["accepted"]) == {"full-0.5/1", "full-0.5/3", "two-token/1", "two-token/3"}


KIMI = """
import json, sys
from sglang.srt.utils.hf_transformers_utils import get_config, get_processor
config = get_config(sys.argv[1], trust_remote_code=True)
processor = get_processor(sys.argv[1], trust_remote_code=True)
print(json.dumps([type(config).__name__, config.text_config.kv_lora_rank, config.vision_config.vt_hidden_size,
    processor.media_processor.media_proc_cfg["patch_size"], processor.tokenizer.decode([40, 41, 42])]))
"""


@pytest.mark.environment
def test_sglang_reads_the_kimi_shaped_target(tmp_path, built_stack):
    assert main(["models", "make", str(tmp_path / "kimi"), "--architecture", "kimi-k25", "--intermediate", "64"]) == 0
    target = tmp_path / "kimi" / "target"
    check_model_folder(target)
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hub")}
    python = built_stack("cu130-pypi").environment / "bin" / "python"
    words = [str(python), "-c", KIMI, str(target)]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=250, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == ["KimiK25Config", 512, 128, 14, "%&'"]


def test_grouped_heads_shrink_the_targets_cache_and_not_the_drafts(tmp_path):
    models = SyntheticModels("llama", Shape(8, 512, 64, 512, 2), 1, (Draft(DraftForm.FULL, 0.5),))
    write_models(tmp_path / "m", models)
    assert read_models(tmp_path / "m") == models
    target = json.loads((tmp_path / "m" / "target" / "config.json").read_text())
    draft = json.loads((tmp_path / "m" / "drafts" / "full-0.5" / "config.json").read_text())
    assert (target["num_key_value_heads"], draft["num_key_value_heads"]) == (2, 8)
    layer = tensors(tmp_path / "m" / "target" / "model-00002-of-00009.safetensors")
    shapes = [layer[f"model.layers.0.self_attn.{part}_proj.weight"][1] for part in "qkv"]
    assert shapes == [[512, 512], [128, 512], [128, 512]]
    with pytest.raises(UsageError, match="3 key-value heads do not divide the target's 8 heads"):
        write_models(tmp_path / "n", SyntheticModels("llama", Shape(8, 512, 64, 512, 3), 1, ()))
