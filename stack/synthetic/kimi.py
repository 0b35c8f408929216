"""A tiny target of the class KimiK25ForConditionalGeneration: vision tower, projector, MLA attention and experts.

Names and sizes are those that ``models/kimi_k25.py`` and ``models/deepseek_v2.py`` of SGLang 0.5.9 and 0.5.14 load. The
language model obeys the same rule as the Llama-shaped target: what each layer would add is multiplied by zero. The
vision tower is there to be loaded; it is never asked.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from stack.synthetic.llama import Shape, embedding, target_head
from stack.synthetic.orbit import Orbit
from stack.synthetic.tensors import Tensor, constant, noise, zeros_float32

_HEADS = 16
_QUERY_RANK = 128
_KV_RANK = 512
"""The only rank, with a rotary part of 64, for which flashinfer's and FlashMLA's kernels are built."""
_NOPE = 128
_ROPE = 64
_VALUE = 128
_EXPERTS = 8
_EXPERTS_PER_TOKEN = 2
_DENSE_LAYERS = 1
_VISION_WIDTH = 128
_VISION_GRID = 8
_PATCH = 14
_MERGE = 2
_PLACEHOLDER = 2
"""The id that stands for an image in a prompt: the padding token."""

_PROCESSOR = '''\
"""What SGLang asks of a Kimi-K2.5 processor when only text is sent: a tokenizer, and the sizes of the vision tower."""

from types import SimpleNamespace

from transformers import AutoTokenizer
from transformers.processing_utils import ProcessorMixin


class SyntheticProcessor(ProcessorMixin):
    attributes = []

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.image_processor = None
        self.media_processor = SimpleNamespace(media_proc_cfg={
            "patch_size": %(patch)d, "merge_kernel_size": %(merge)d, "in_patch_limit": 64,
            "patch_limit_on_one_side": 8, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
        })

    @classmethod
    def from_pretrained(cls, folder, **unused):
        return cls(AutoTokenizer.from_pretrained(folder))
'''


def target_config(shape: Shape) -> dict[str, object]:
    """``config.json`` of a Kimi-K2.5-shaped target."""
    text = {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "moe_intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _HEADS,
        "q_lora_rank": _QUERY_RANK,
        "kv_lora_rank": _KV_RANK,
        "qk_nope_head_dim": _NOPE,
        "qk_rope_head_dim": _ROPE,
        "v_head_dim": _VALUE,
        "n_routed_experts": _EXPERTS,
        "n_shared_experts": 1,
        "num_experts_per_tok": _EXPERTS_PER_TOKEN,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
        "first_k_dense_replace": _DENSE_LAYERS,
        "moe_layer_freq": 1,
        "num_nextn_predict_layers": 0,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "max_position_embeddings": 8192,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    vision = {
        "model_type": "kimi_k25",
        "patch_size": _PATCH,
        "init_pos_emb_height": _VISION_GRID,
        "init_pos_emb_width": _VISION_GRID,
        "init_pos_emb_time": 4,
        "pos_emb_type": "divided_fixed",
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "hidden_size": _VISION_WIDTH,
        "vt_hidden_size": _VISION_WIDTH,
        "intermediate_size": _VISION_WIDTH,
        "merge_kernel_size": [_MERGE, _MERGE],
        "video_attn_type": "spatial_temporal",
        "merge_type": "sd2_tpool",
        "mm_projector_type": "patchmerger",
        "mm_hidden_size": _VISION_WIDTH,
        "text_hidden_size": shape.hidden,
    }
    return {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "text_config": text,
        "vision_config": vision,
        "media_placeholder_token_id": _PLACEHOLDER,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }


def target_shards(shape: Shape, orbit: Orbit, seed: int) -> list[list[Tensor]]:
    """One shard for vision, embedding and head, and one a layer."""
    language = "language_model.model"
    first = [
        embedding(f"{language}.embed_tokens.weight", orbit, shape.hidden),
        constant(f"{language}.norm.weight", (shape.hidden,), 1.0),
        target_head("language_model.lm_head.weight", orbit, shape.hidden),
        *_vision(shape, seed),
    ]
    return [first, *(list(_layer(f"{language}.layers.{n}", n, shape, seed)) for n in range(shape.layers))]


def write_extras(folder: Path) -> None:
    """The processor that SGLang's tokenizer manager insists on for a multimodal class (needs --trust-remote-code)."""
    (folder / "processing_synthetic.py").write_text(_PROCESSOR % {"patch": _PATCH, "merge": _MERGE}, encoding="utf-8")
    document = {
        "processor_class": "SyntheticProcessor",
        "auto_map": {"AutoProcessor": "processing_synthetic.SyntheticProcessor"},
    }
    (folder / "processor_config.json").write_text(json.dumps(document, indent=1), encoding="utf-8")


def _layer(prefix: str, number: int, shape: Shape, seed: int) -> Iterator[Tensor]:
    hidden = shape.hidden
    attention = f"{prefix}.self_attn"
    yield constant(f"{prefix}.input_layernorm.weight", (hidden,), 1.0)
    yield constant(f"{prefix}.post_attention_layernorm.weight", (hidden,), 1.0)
    yield noise(f"{attention}.q_a_proj.weight", (_QUERY_RANK, hidden), seed)
    yield constant(f"{attention}.q_a_layernorm.weight", (_QUERY_RANK,), 1.0)
    yield noise(f"{attention}.q_b_proj.weight", (_HEADS * (_NOPE + _ROPE), _QUERY_RANK), seed)
    yield noise(f"{attention}.kv_a_proj_with_mqa.weight", (_KV_RANK + _ROPE, hidden), seed)
    yield constant(f"{attention}.kv_a_layernorm.weight", (_KV_RANK,), 1.0)
    yield noise(f"{attention}.kv_b_proj.weight", (_HEADS * (_NOPE + _VALUE), _KV_RANK), seed)
    yield constant(f"{attention}.o_proj.weight", (hidden, _HEADS * _VALUE), 0.0)
    if number < _DENSE_LAYERS:
        yield from _mlp(f"{prefix}.mlp", shape, seed)
        return
    yield noise(f"{prefix}.mlp.gate.weight", (_EXPERTS, hidden), seed)
    yield zeros_float32(f"{prefix}.mlp.gate.e_score_correction_bias", _EXPERTS)
    yield from _mlp(f"{prefix}.mlp.shared_experts", shape, seed)
    for expert in range(_EXPERTS):
        yield from _mlp(f"{prefix}.mlp.experts.{expert}", shape, seed)


def _mlp(prefix: str, shape: Shape, seed: int) -> Iterator[Tensor]:
    yield noise(f"{prefix}.gate_proj.weight", (shape.intermediate, shape.hidden), seed)
    yield noise(f"{prefix}.up_proj.weight", (shape.intermediate, shape.hidden), seed)
    yield constant(f"{prefix}.down_proj.weight", (shape.hidden, shape.intermediate), 0.0)


def _vision(shape: Shape, seed: int) -> Iterator[Tensor]:
    width = _VISION_WIDTH
    merged = width * _MERGE * _MERGE
    block = "vision_tower.encoder.blocks.0"
    yield noise("vision_tower.patch_embed.proj.weight", (width, 3, _PATCH, _PATCH), seed)
    yield constant("vision_tower.patch_embed.proj.bias", (width,), 0.0)
    yield noise("vision_tower.patch_embed.pos_emb.weight", (_VISION_GRID, _VISION_GRID, width), seed)
    linear = {
        f"{block}.wqkv": (3 * width, width),
        f"{block}.wo": (width, width),
        f"{block}.mlp.fc0": (width, width),
        f"{block}.mlp.fc1": (width, width),
        "mm_projector.proj.0": (merged, merged),
        "mm_projector.proj.2": (shape.hidden, merged),
    }
    for name, size in linear.items():
        yield noise(f"{name}.weight", size, seed)
        yield constant(f"{name}.bias", (size[0],), 0.0)
    for name in (f"{block}.norm0", f"{block}.norm1", "vision_tower.encoder.final_layernorm", "mm_projector.pre_norm"):
        yield constant(f"{name}.weight", (width,), 1.0)
        yield constant(f"{name}.bias", (width,), 0.0)
