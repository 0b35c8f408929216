"""What was asked of a server against what it says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from abi_checks.findings import Finding, Severity
from stack.serve.report import Setting

_RENAMED = {
    "tp": ("tp_size",),
    "cuda-graph-max-bs": ("cuda_graph_max_bs", "cuda_graph_max_bs_decode"),
    "cuda-graph-bs": ("cuda_graph_bs", "cuda_graph_bs_decode"),
    "enable-flashinfer-allreduce-fusion": ("enable_flashinfer_allreduce_fusion", "flashinfer_allreduce_fusion_backend"),
}
"""Options whose value the server reports under another name, in SGLang 0.5.9 or 0.5.14."""

_CHOSEN = (
    "attention_backend",
    "sampling_backend",
    "speculative_algorithm",
    "speculative_num_steps",
    "speculative_eagle_topk",
    "speculative_num_draft_tokens",
    "cuda_graph_max_bs",
    "cuda_graph_max_bs_decode",
    "mem_fraction_static",
    "kv_cache_dtype",
    "max_total_num_tokens",
    "disable_overlap_schedule",
)
"""Settings worth knowing that a server chooses for itself where it is told nothing."""


def compare_settings(options: tuple[tuple[str, str], ...], info: Mapping[str, Any]) -> tuple[Setting, ...]:
    """Every option asked for beside the server's own word, then what the server chose by itself."""
    settings = []
    asked: set[str] = set()
    for name, value in options:
        names = _RENAMED.get(name, (name.replace("-", "_"),))
        asked.update(names)
        found = next((info[key] for key in names if info.get(key) is not None), None)
        requested = value or "true"
        reported = "" if found is None else _text(found)
        verdict = "unknown" if found is None else "same" if _equal(requested, reported) else "changed"
        settings.append(Setting(name, requested, reported, verdict))
    for name in _CHOSEN:
        if name not in asked and info.get(name) is not None:
            settings.append(Setting(name.replace("_", "-"), "", _text(info[name]), "chosen"))
    states = info.get("internal_states")
    if isinstance(states, list) and states and isinstance(states[0], dict):
        limit = states[0].get("effective_max_running_requests_per_dp")
        if limit is not None:
            settings.append(Setting("effective-max-running-requests", "", _text(limit), "chosen"))
    return tuple(settings)


def setting_findings(settings: tuple[Setting, ...]) -> tuple[Finding, ...]:
    """One warning for each setting that the server runs differently from what it was told."""
    return tuple(
        Finding(
            check="setting-changed",
            severity=Severity.WARNING,
            object="",
            message=f"--{setting.name}: asked for {setting.requested}, the server runs with {setting.reported}",
            cause="the server changed a setting that it was given",
            remedy="ask for what it runs with, or look in its log for why it decided otherwise",
        )
        for setting in settings
        if setting.verdict == "changed"
    )


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _equal(requested: str, reported: str) -> bool:
    try:
        return float(requested) == float(reported)
    except ValueError:
        return requested.lower() == reported.lower()
