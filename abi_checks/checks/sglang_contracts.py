"""What SGLang's own source will do on the target GPUs, read and never executed.

Looks for: tables and gates keyed by compute capability that leave a target out (``capability-gate``); with
``--model``, what speculative decoding asks of a model class and the class lacks (``eagle3-contract``); with
``--launch``, options that are accepted and do nothing, are refused or crash on the target (``launch-option``); sources
that can't be parsed (``contracts-source``).
Decides: by following the source from the server's options to the gate that decides, and from the speculative workers to
the methods they call; where the source has moved or depends on the running machine the answer is unknown. Without
``--model`` or ``--launch`` only the parts whose gates crash or refuse are searched, which takes a fraction of a second.
Can't see: what a model does with the hidden states it is asked for, and gates inside compiled code.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from abi_checks.checks.interface import Check, CheckOptions
from abi_checks.findings import Finding
from abi_checks.scan import Scan

IDS = ("capability-gate", "eagle3-contract", "launch-option", "contracts-source")
DEFAULT_MODEL = "KimiK25ForConditionalGeneration"
QUICK_PACKAGES = ("flashinfer.jit", "sglang.srt.distributed")
"""Where the gates are whose exclusion ends a server, rather than choosing another path."""


def run(scan: Scan, options: CheckOptions) -> Iterator[Finding]:
    """Findings on the sglang of the target, for each target GPU; none where either is not known."""
    sglang = scan.installed("sglang")
    if sglang is None or not options.target_sms or not os.path.isdir(scan.root):
        return
    # A thorough reader of Python source is not needed by anyone who judges something else.
    from abi_checks.checks.contracts import check_sglang
    from abi_checks.checks.contracts.gates import PACKAGES
    from abi_checks.checks.contracts.startup import Profile
    from abi_checks.checks.contracts.world import parse_target

    asked = options.contracts
    targets = [parse_target(sm, asked.gpus, asked.nvlink) for sm in options.target_sms]
    folder = os.path.dirname(sglang.folder)
    prefix = folder + "/" if folder else ""
    model = asked.models[0] if asked.models else DEFAULT_MODEL
    found = check_sglang(
        Path(scan.root, folder),
        targets,
        models=asked.models,
        profiles=[Profile(model, target, asked.launch) for target in targets] if asked.launch else (),
        coverage={
            scan.relative(path).removeprefix(prefix): [code for group in groups for code in group.codes]
            for path, groups in scan.device_code.items()
        },
        gate_packages=PACKAGES if asked.models or asked.launch else QUICK_PACKAGES,
    )
    yield from found


CHECK = Check(IDS, run, __doc__)
