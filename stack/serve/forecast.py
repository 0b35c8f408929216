"""What SGLang's own source says of a launch: options without effect, and classes that cannot speculate."""

from __future__ import annotations

import json
from pathlib import Path

from abi_checks.checks.contracts import check_sglang
from abi_checks.checks.contracts.startup import Profile, parse_option
from abi_checks.checks.contracts.world import parse_target
from abi_checks.findings import Finding
from stack.serve.gpu import Gpu
from stack.serve.launch import Launch


def site_packages(python: Path) -> Path:
    """The folder of packages of the environment that a ``bin/python`` belongs to."""
    found = sorted(python.parent.parent.glob("lib/python3*/site-packages"))
    return found[0] if found else python.parent.parent


def forecast(launch: Launch, gpus: tuple[Gpu, ...]) -> tuple[Finding, ...]:
    """Requested against effective, read from the source for this GPU; nothing where the environment has no SGLang.

    How the GPUs are joined is left open. Takes seconds.
    """
    architectures = json.loads((launch.model / "config.json").read_text(encoding="utf-8")).get("architectures") or [""]
    model = str(architectures[0])
    target = parse_target(gpus[0].sm, launch.tp)
    options = tuple(parse_option(f"{name}={value}" if value else name) for name, value in launch.options)
    return tuple(
        check_sglang(
            site_packages(launch.python),
            (),
            models=(model,) if launch.speculative else (),
            profiles=(Profile(model, target, options),),
        )
    )
