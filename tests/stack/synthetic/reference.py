"""Runs in a stack's own Python, on the CPU: what the models really compute, in bfloat16. Prints one JSON document.

Usage: reference.py FOLDER PROMPT_TOKEN COUNT STEPS...
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, LlamaForCausalLM


def rms(x):
    return (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def rotate(x, positions):
    half = x.shape[-1] // 2
    frequencies = 10000.0 ** (-torch.arange(half, dtype=torch.float32) / half)
    angle = positions[:, None].float() * frequencies
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    a, b = x[..., :half].float(), x[..., half:].float()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


class Draft:
    """SGLang's LlamaForCausalLMEagle3 of one layer, as its source describes it, without a cache."""

    def __init__(self, folder, embedding):
        self.w = load_file(Path(folder) / "model.safetensors")
        self.embedding = embedding
        self.heads = json.loads((Path(folder) / "config.json").read_text())["num_attention_heads"]

    def layer(self, tokens, hidden):
        """Hidden states after the layer for ``tokens`` at positions 0, 1, …; causal."""
        w = self.w
        x = torch.cat([rms(self.embedding[tokens]), rms(hidden)], -1)
        count = len(tokens)
        positions = torch.arange(count)
        q, k, v = ((x @ w[f"midlayer.self_attn.{p}_proj.weight"].T).view(count, self.heads, -1) for p in "qkv")
        q, k = rotate(q, positions), rotate(k, positions)
        scores = torch.einsum("qhd,khd->hqk", q.float(), k.float()) / q.shape[-1] ** 0.5
        scores += torch.full((count, count), float("-inf")).triu(1)
        mixed = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v.float()).to(x.dtype).reshape(count, -1)
        out = hidden + mixed @ w["midlayer.self_attn.o_proj.weight"].T
        y = rms(out)
        gate = torch.nn.functional.silu(y @ w["midlayer.mlp.gate_proj.weight"].T)
        return out + (gate * (y @ w["midlayer.mlp.up_proj.weight"].T)) @ w["midlayer.mlp.down_proj.weight"].T

    def propose(self, tokens, aux, steps):
        """``tokens`` are those after the first of the sequence, ``aux`` the states of those before the last."""
        hidden = aux @ self.w["fc.weight"].T
        tokens = list(tokens)
        proposals = []
        inputs = hidden
        for _ in range(steps):
            out = self.layer(torch.tensor(tokens), inputs)
            proposals.append(int((rms(out[-1:]) @ self.w["lm_head.weight"].T).argmax()))
            tokens.append(proposals[-1])
            inputs = torch.cat([inputs, out[-1:]])
        return proposals


def main():
    folder, prompt, count, *steps = sys.argv[1:]
    folder, prompt, count = Path(folder), int(prompt), int(count)
    target = LlamaForCausalLM.from_pretrained(folder / "target", dtype=torch.bfloat16)
    tokenizer = AutoTokenizer.from_pretrained(folder / "target")
    with torch.inference_mode():
        ids = torch.tensor([[5, 7, prompt]])
        output = target.generate(ids, max_new_tokens=count, do_sample=False, eos_token_id=None)[0].tolist()
        states = target(torch.tensor([output]), output_hidden_states=True).hidden_states
        layers = target.config.num_hidden_layers
        aux = torch.cat([states[n][0] for n in (2, layers // 2, layers - 3)], -1)
        result = {"tokens": output[3:], "text": tokenizer.decode(output[3:]), "accepted": {}}
        for draft_folder in sorted((folder / "drafts").iterdir()):
            draft = Draft(draft_folder, target.get_input_embeddings().weight)
            for step_count in map(int, steps):
                accepted = []
                have = 4
                while have - 3 < count:
                    proposals = draft.propose(output[1:have], aux[: have - 1], step_count)
                    truth = target.generate(
                        torch.tensor([output[:have]]), max_new_tokens=step_count, do_sample=False, eos_token_id=None
                    )[0].tolist()[have:]
                    right = 0
                    while right < step_count and proposals[right] == truth[right]:
                        right += 1
                    accepted.append(right)
                    have += right + 1
                result["accepted"][f"{draft_folder.name}/{step_count}"] = accepted
    print(json.dumps(result))


main()
