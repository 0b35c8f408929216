"""The Llama-shaped target and the EAGLE-3 drafts.

Let e_t be the t-th unit vector of the hidden space.

Target: embedding row t is e_t; every layer's o_proj and down_proj are zero, so each layer computes for real and adds
nothing; lm_head row j is e_{P^-1(j)}, so the next token is P(t).

Draft, two-token form: its layer adds nothing either, and lm_head row j is e_{P^-2(j)}: from the hidden state e_t of the
last verified position it proposes P(P(t)), which is right, and goes on proposing it.

Draft, full form: attention looks at its own position only and its output is e_input - hidden, so that the layer
returns the embedding of the token just drafted. q_proj and k_proj are the same constant on the embedding half of their
input; RMSNorm turns a unit vector into a single entry sqrt(H), so q and k are the same vector everywhere and only
the rotary embedding tells positions apart. v_proj is [I, -I] / sqrt(H) and o_proj is I.

In both forms the lm_head also counts against the tokens that would be right where the draft is meant to be wrong: with
top-k above 1 all other candidates tie, and a tie must not be won by chance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from stack.synthetic.orbit import DraftForm, Orbit
from stack.synthetic.tensors import Tensor, constant, equal_rows, noise, sparse, zeros_int64

HEAD_DIM = 64
"""One head size for all: each further one costs a server another compile of its attention kernels."""
_SHARPNESS = 400.0
"""2 c^2 H: how strongly the draft's attention prefers its own position. See :func:`attention_margin`."""
_EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a target; ``vocabulary`` <= ``hidden``, and ``layers`` >= 8 so that EAGLE-3's captured layers exist.

    ``target_kv_heads`` below the number of heads makes the target's KV cache smaller (grouped-query attention); 0 is as
    many as heads. The draft's attention needs all its heads, so a draft always has them.
    """

    layers: int
    hidden: int
    intermediate: int
    vocabulary: int
    target_kv_heads: int = 0

    @property
    def heads(self) -> int:
        return self.hidden // HEAD_DIM


def attention_margin(positions: int) -> float:
    """The smallest lead, in logits, of the own position over any of the ``positions`` before it in the full form."""
    frequencies = [10000.0 ** (-2.0 * pair / HEAD_DIM) for pair in range(HEAD_DIM // 2)]
    lost = min(sum(1.0 - math.cos(frequency * back) for frequency in frequencies) for back in range(1, positions + 1))
    return _SHARPNESS * lost / math.sqrt(HEAD_DIM)


def config(shape: Shape, architecture: str, layers: int) -> dict[str, object]:
    """``config.json`` of a target or a draft."""
    return {
        "architectures": [architecture],
        "model_type": "llama",
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "rms_norm_eps": _EPSILON,
        "rope_theta": 10000.0,
        "max_position_embeddings": 8192,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
    }


def embedding(name: str, orbit: Orbit, hidden: int) -> Tensor:
    """Row t is e_t, or e of the ordinary token as which t behaves."""
    return sparse(name, (orbit.vocabulary, hidden), lambda token: {orbit.ordinary(token): 1.0})


def target_head(name: str, orbit: Orbit, hidden: int) -> Tensor:
    """Row P(t) is e_t; rows of tokens that are never produced are zero."""
    rows = {orbit.successor(token): {token: 1.0} for token in orbit.cycle}
    return sparse(name, (orbit.vocabulary, hidden), lambda token: rows.get(token, {}))


def target_shards(shape: Shape, orbit: Orbit, seed: int) -> list[list[Tensor]]:
    """One shard a layer, and one for the embedding, the last norm and the head."""
    shards = [
        [
            embedding("model.embed_tokens.weight", orbit, shape.hidden),
            constant("model.norm.weight", (shape.hidden,), 1.0),
            target_head("lm_head.weight", orbit, shape.hidden),
        ]
    ]
    square = (shape.hidden, shape.hidden)
    grouped = (shape.target_kv_heads * HEAD_DIM or shape.hidden, shape.hidden)
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}"
        shards.append(
            [
                constant(f"{prefix}.input_layernorm.weight", (shape.hidden,), 1.0),
                constant(f"{prefix}.post_attention_layernorm.weight", (shape.hidden,), 1.0),
                noise(f"{prefix}.self_attn.q_proj.weight", square, seed),
                *(noise(f"{prefix}.self_attn.{part}_proj.weight", grouped, seed) for part in "kv"),
                constant(f"{prefix}.self_attn.o_proj.weight", square, 0.0),
                *_mlp(prefix, shape, seed),
            ]
        )
    return shards


def _mlp(prefix: str, shape: Shape, seed: int) -> list[Tensor]:
    wide = (shape.intermediate, shape.hidden)
    return [
        noise(f"{prefix}.mlp.gate_proj.weight", wide, seed),
        noise(f"{prefix}.mlp.up_proj.weight", wide, seed),
        constant(f"{prefix}.mlp.down_proj.weight", (shape.hidden, shape.intermediate), 0.0),
    ]


def draft_config(shape: Shape) -> dict[str, object]:
    """``config.json`` of an EAGLE-3 draft for a target of this shape."""
    return {**config(shape, "LlamaForCausalLMEagle3", 1), "draft_vocab_size": shape.vocabulary}


def draft_tensors(shape: Shape, orbit: Orbit, form: DraftForm, acceptance: float, seed: int) -> list[Tensor]:
    """All tensors of a draft; ``acceptance`` matters to the full form only."""
    hidden = shape.hidden
    ones = ("midlayer.input_layernorm", "midlayer.hidden_norm", "midlayer.post_attention_layernorm", "norm")
    third = 1.0 / 3.0
    return [
        sparse("fc.weight", (hidden, 3 * hidden), lambda row: {row + part * hidden: third for part in range(3)}),
        *(constant(f"{name}.weight", (hidden,), 1.0) for name in ones),
        *(_full_attention(hidden) if form is DraftForm.FULL else _idle_attention(hidden, seed)),
        *_mlp("midlayer", shape, seed),
        _draft_head(orbit, hidden, form, acceptance),
        zeros_int64("d2t", shape.vocabulary),
    ]


def _idle_attention(hidden: int, seed: int) -> list[Tensor]:
    parts = [noise(f"midlayer.self_attn.{part}_proj.weight", (hidden, 2 * hidden), seed) for part in "qkv"]
    return [*parts, constant("midlayer.self_attn.o_proj.weight", (hidden, hidden), 0.0)]


def _full_attention(hidden: int) -> list[Tensor]:
    strength = math.sqrt(_SHARPNESS / (2.0 * hidden))
    scale = 1.0 / math.sqrt(hidden)
    constant_row = dict.fromkeys(range(hidden), strength)
    double = (hidden, 2 * hidden)
    return [
        equal_rows("midlayer.self_attn.q_proj.weight", double, constant_row),
        equal_rows("midlayer.self_attn.k_proj.weight", double, constant_row),
        sparse("midlayer.self_attn.v_proj.weight", double, lambda row: {row: scale, row + hidden: -scale}),
        sparse("midlayer.self_attn.o_proj.weight", (hidden, hidden), lambda row: {row: 1.0}),
    ]


def _draft_head(orbit: Orbit, hidden: int, form: DraftForm, acceptance: float) -> Tensor:
    rows: dict[int, dict[int, float]] = {token: {} for token in orbit.cycle}
    wrong = orbit.mistakes(acceptance) if form is DraftForm.FULL else {}
    for token in orbit.cycle:
        if form is DraftForm.TWO_TOKEN:
            rows[orbit.successor(token, 2)][token] = 1.0
            rows[orbit.successor(token, 3)][token] = -1.0
        else:
            rows[wrong.get(token, orbit.successor(token))][token] = 1.0
            if token in wrong:
                rows[orbit.successor(token)][token] = -1.0
    return sparse("lm_head.weight", (orbit.vocabulary, hidden), lambda token: rows.get(token, {}))


def target_config(shape: Shape) -> dict[str, object]:
    """``config.json`` of a target of this shape."""
    sizes = config(shape, "LlamaForCausalLM", shape.layers)
    return {**sizes, "num_key_value_heads": shape.target_kv_heads or shape.heads}


def write_extras(folder: Path) -> None:
    """A Llama-shaped target needs no further files."""
