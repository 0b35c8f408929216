"""Run by the interpreter of an environment with SGLang 0.5.9: exercises the patched places on a CPU, prints JSON.

Everything around the patched code is a stand-in; the patched classes, and DeepseekV3ForCausalLM, are SGLang's own.
"""

import json
import logging
from types import SimpleNamespace

import torch
from flashinfer.jit import comm
from sglang.srt.distributed.device_communicators import torch_symm_mem
from sglang.srt.layers import communicator
from sglang.srt.models.deepseek_v2 import DeepseekV3ForCausalLM
from sglang.srt.models.kimi_k25 import KimiK25ForConditionalGeneration
from torch import nn

METHODS = ("get_embed_and_head", "set_embed_and_head", "set_eagle3_layers_to_capture")


def make_kimi():
    """A KimiK25ForConditionalGeneration around a 61-layer DeepseekV3ForCausalLM without layers."""
    inner = DeepseekV3ForCausalLM.__new__(DeepseekV3ForCausalLM)
    nn.Module.__init__(inner)
    inner.pp_group = SimpleNamespace(is_first_rank=True, is_last_rank=True)
    inner.config = SimpleNamespace(num_hidden_layers=61)
    inner.capture_aux_hidden_states = False
    inner.nsa_enable_prefill_cp = False
    inner.model = Decoder()
    inner.lm_head = nn.Linear(4, 10, bias=False)
    inner.logits_processor = lambda ids, hidden, head, batch, aux: (hidden, aux)
    outer = KimiK25ForConditionalGeneration.__new__(KimiK25ForConditionalGeneration)
    nn.Module.__init__(outer)
    outer.language_model = inner
    return outer


class Decoder(nn.Module):
    """Gives the hidden states, and beside them one tensor for each layer to capture."""

    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(10, 4)
        self.layers_to_capture = []

    def forward(self, input_ids, positions, forward_batch, input_embeds, pp_proxy_tensors):
        return input_embeds, [torch.full((1,), float(layer)) for layer in self.layers_to_capture]


def probe_kimi():
    found = {"methods": [name for name in METHODS if hasattr(KimiK25ForConditionalGeneration, name)]}
    if len(found["methods"]) < len(METHODS):
        return found
    model = make_kimi()
    inner = model.language_model
    embed, head = model.get_embed_and_head()
    found["get"] = embed is inner.model.embed_tokens.weight and head is inner.lm_head.weight
    torch.cuda.synchronize = lambda: None
    new_embed, new_head = nn.Parameter(torch.ones(10, 4)), nn.Parameter(torch.zeros(10, 4))
    model.set_embed_and_head(new_embed, new_head)
    found["set"] = inner.model.embed_tokens.weight is new_embed and inner.lm_head.weight is new_head
    model.set_eagle3_layers_to_capture()
    found["default layers"] = inner.model.layers_to_capture
    model.set_eagle3_layers_to_capture([1, 29, 57])
    found["named layers"] = inner.model.layers_to_capture
    mode = SimpleNamespace(is_decode=lambda: True, is_target_verify=lambda: False)
    batch = SimpleNamespace(forward_mode=mode, input_embeds=None)
    hidden, captured = model.forward(torch.tensor([3]), torch.tensor([0]), batch)
    found["embeddings looked up inside"] = torch.equal(hidden, new_embed[3:4])
    found["captured"] = [state.item() for state in captured]
    return found


def probe_symmetric_memory(capability):
    messages = []
    logger = logging.Logger("probe")
    logger.addHandler(SimpleNamespace(level=0, handle=lambda record: messages.append(record.getMessage())))
    torch_symm_mem.logger = logger
    torch_symm_mem.torch_symm_mem_available = True
    torch_symm_mem.torch_symm_mem = SimpleNamespace(
        empty=lambda count, device, dtype: SimpleNamespace(bytes=count * dtype.itemsize),
        rendezvous=lambda buffer, group: SimpleNamespace(multicast_ptr=0),
    )
    torch_symm_mem.dist = SimpleNamespace(get_world_size=lambda group: 8)
    torch.cuda.set_device = lambda device: None
    torch.cuda.get_device_capability = lambda device: (capability, 0)
    try:
        made = torch_symm_mem.TorchSymmMemCommunicator(SimpleNamespace(group_name="g"), 0)
    except KeyError as error:
        return {"error": f"KeyError: {error}"}
    return {"disabled": made.disabled, "size": getattr(made, "max_size", None), "messages": messages}


def probe_fusion():
    """SGLang's gate and flashinfer's compiler flags on compute capability 12.0, the fusion being asked for."""
    communicator._is_sm90_supported = communicator._is_sm100_supported = False
    communicator._is_sm120_supported = True
    communicator._is_flashinfer_available = True
    communicator.is_dp_attention_enabled = lambda: False
    communicator.get_global_server_args = lambda: SimpleNamespace(enable_flashinfer_allreduce_fusion=True)
    comm.current_compilation_context.TARGET_CUDA_ARCHS = {(12, "0a")}
    comm.gen_jit_spec = lambda name, sources, extra_cuda_cflags: extra_cuda_cflags[0]
    try:
        flags = comm.gen_trtllm_comm_module()
    except RuntimeError as error:
        flags = str(error)
    return {"gate": communicator.apply_flashinfer_allreduce_fusion(8), "flags": flags}


results = {
    "kimi": probe_kimi(),
    "symmetric memory": {str(major): probe_symmetric_memory(major) for major in (10, 12, 13)},
    "fusion": probe_fusion(),
}
print(json.dumps(results))
