"""The contract checks as findings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from abi_checks.checks.contracts.attention import OPTION as ATTENTION
from abi_checks.checks.contracts.attention import Coverage, judge_attention
from abi_checks.checks.contracts.eagle import Contract, read_contract
from abi_checks.checks.contracts.gates import PACKAGES, Consequence, Gate, find_gates
from abi_checks.checks.contracts.options import OptionJudge
from abi_checks.checks.contracts.registry import ClassJudge, ClassVerdict, read_registry
from abi_checks.checks.contracts.source import SourceTree
from abi_checks.checks.contracts.startup import Profile
from abi_checks.checks.contracts.verdicts import OptionVerdict, Outcome
from abi_checks.checks.contracts.world import Target
from abi_checks.findings import Finding, Severity

EAGLE = "eagle3-contract"
GATE = "capability-gate"
LAUNCH = "launch-option"
SOURCE = "contracts-source"
IDS = (EAGLE, GATE, LAUNCH, SOURCE)
_SHOWN = 12
_SEVERITY = {
    Outcome.INERT: Severity.WARNING,
    Outcome.CHANGED: Severity.WARNING,
    Outcome.REFUSED: Severity.ERROR,
    Outcome.CRASHES: Severity.ERROR,
    Outcome.UNKNOWN: Severity.UNKNOWN,
}
_CAUSES = {
    Consequence.CRASH: "a table keyed by compute capability has no entry for the target and is subscripted unguarded",
    Consequence.REFUSAL: "a list or condition on the compute capability refuses the target",
    Consequence.SILENCE: "a condition on the compute capability passes the target over without a word",
    Consequence.UNKNOWN: "a list of compute capabilities leaves the target out",
}


def distribution_of(tree: SourceTree, package: str) -> str:
    """``name==version`` of the distribution that a package belongs to, by its dist-info folder; "" if there is none."""
    names = {"flashinfer": "flashinfer_python", "sgl_kernel": "sgl*kernel"}
    for folder in sorted(tree.root.glob(f"{names.get(package, package)}-*.dist-info")):
        name, _, version = folder.name.removesuffix(".dist-info").partition("-")
        return f"{name.replace('_', '-').lower()}=={version}"
    return ""


def check_sglang(
    site_packages: Path,
    targets: Sequence[Target],
    *,
    models: Sequence[str] = (),
    profiles: Sequence[Profile] = (),
    coverage: Coverage | None = None,
    gate_packages: Sequence[str] = PACKAGES,
) -> list[Finding]:
    """Findings about the SGLang below a folder; none where there is no SGLang.

    Gates are looked for on every target; classes are judged where ``models`` names them, launches where ``profiles``
    has them. ``coverage`` is the device code of shared objects; without it only the source decides. ``gate_packages``
    are the packages, or parts of them, that are searched for gates.
    """
    tree = SourceTree(site_packages)
    if not tree.has_package("sglang.srt"):
        return []
    findings: list[Finding] = []
    for target in targets:
        findings.extend(gate_findings(tree, target, find_gates(tree, target, gate_packages)))
    if models:
        contract = read_contract(tree)
        registry = read_registry(tree, models)
        verdicts = [ClassJudge(tree, contract).judge(cls) for cls in registry.classes]
        findings.extend(eagle_findings(tree, contract, verdicts, models, registry.gaps))
    for profile in profiles:
        findings.extend(launch_findings(tree, profile, judge_launch(tree, profile, coverage)))
    return [*findings, *source_findings(tree)]


def judge_launch(tree: SourceTree, profile: Profile, coverage: Coverage | None = None) -> list[OptionVerdict]:
    """A verdict for each option of a launch, in its order; the attention backend's last where it is not asked for."""
    judge = OptionJudge(tree, profile)
    verdicts = [v for v in judge.judge_all() if v.option != ATTENTION or v.outcome is Outcome.REFUSED]
    if all(v.option != ATTENTION for v in verdicts):
        options = (
            *judge.profile.options,
            *((n, v) for n, v in judge.asked if n == ATTENTION and n not in dict(judge.profile.options)),
        )
        verdicts.append(judge_attention(tree, Profile(profile.model, profile.target, options), coverage))
    order = {name: index for index, (name, _) in enumerate(profile.options)}
    return sorted(verdicts, key=lambda v: order.get(v.option, len(order)))


def gate_findings(tree: SourceTree, target: Target, gates: Sequence[Gate]) -> Iterator[Finding]:
    """One finding for each file and consequence."""
    groups: dict[tuple[str, Consequence], list[Gate]] = {}
    for gate in gates:
        groups.setdefault((gate.place.path, gate.consequence), []).append(gate)
    for (path, consequence), members in groups.items():
        lines = [f"line {g.place.line}, {g.function or 'module level'}: {g.text}" for g in members[:_SHOWN]]
        if len(members) > _SHOWN:
            lines.append(f"and {len(members) - _SHOWN} more")
        yield Finding(
            check=GATE,
            severity=Severity.WARNING if consequence is Consequence.CRASH else Severity.INFO,
            object=path,
            message=f"SM{target.sm} is left out in {len(members)} place{'s' * (len(members) > 1)}: {consequence}",
            cause=f"SM{target.sm}: {_CAUSES[consequence]}",
            remedy="do not ask for what these places serve on this GPU, or patch the source",
            evidence=tuple(lines),
            distribution=distribution_of(tree, path.partition("/")[0]),
        )


def eagle_findings(
    tree: SourceTree, contract: Contract, verdicts: Sequence[ClassVerdict], models: Sequence[str], gaps: Sequence[str]
) -> Iterator[Finding]:
    """A finding for each class that does not keep the contract, each class that is not there, and each gap."""
    owner = distribution_of(tree, "sglang")
    calls = tuple(
        f"{name} is called on a {use.role} model at {use.place}"
        for name, uses in contract.methods().items()
        for use in uses
    )
    for verdict in verdicts:
        if verdict.verdict == "complete":
            continue
        unknown = [f"{n}: {m.reason}" for n, m in verdict.methods.items() if m.state == "unknown"]
        unknown += [f"not known of the calls: {gap}" for gap in contract.gaps]
        lacking = [f"{n}: {verdict.methods[n].reason}" for n in verdict.lacking]
        as_target = [n for n in verdict.lacking if "target" in contract.roles(n)]
        severity = Severity.ERROR if as_target else Severity.WARNING if lacking else Severity.UNKNOWN
        said = f"lacks {', '.join(verdict.lacking)}" if lacking else "may lack methods that speculation calls"
        yield Finding(
            check=EAGLE,
            severity=severity,
            object=str(verdict.place),
            message=f"{verdict.name} {said}",
            cause="a model class does not keep the contract of speculative decoding",
            remedy="serve it without EAGLE-3, or patch the class"
            + (f": {'; '.join(verdict.delegates)}" if verdict.delegates else ""),
            evidence=(*lacking, *unknown, *calls),
            distribution=owner,
        )
    present = {v.name for v in verdicts}
    for model in models:
        if model not in present:
            yield Finding(
                EAGLE,
                Severity.UNKNOWN,
                "",
                f"{model} is not in the model registry",
                "a model class is not found",
                "name a class that an EntryClass of sglang/srt/models names",
                tuple(gaps[:_SHOWN]),
                owner,
            )
    for gap in contract.gaps:
        yield Finding(
            EAGLE,
            Severity.UNKNOWN,
            "",
            gap,
            "the contract cannot be read in full",
            "report this SGLang version",
            (),
            owner,
        )


def launch_findings(tree: SourceTree, profile: Profile, verdicts: Sequence[OptionVerdict]) -> Iterator[Finding]:
    """A finding for each option that does not simply take effect."""
    for verdict in verdicts:
        severity = _SEVERITY.get(verdict.outcome)
        if severity is None:
            continue
        asked = "" if verdict.requested is None else f" = {verdict.requested!r}"
        yield Finding(
            check=LAUNCH,
            severity=severity,
            object=str(verdict.places[0]) if verdict.places else "",
            message=f"{verdict.option}{asked}, {profile.model}, {profile.target}: {verdict.outcome}: {verdict.reason}",
            cause=f"a requested option is {verdict.outcome} on the target",
            remedy="leave the option out on this GPU"
            if verdict.outcome is not Outcome.UNKNOWN
            else "try it on the GPU",
            evidence=tuple(str(place) for place in verdict.places) + verdict.conditions,
            distribution=distribution_of(tree, "sglang"),
        )


def source_findings(tree: SourceTree) -> Iterator[Finding]:
    """What stood in the way of judging."""
    if not distribution_of(tree, "sglang"):
        yield Finding(
            SOURCE,
            Severity.INFO,
            "sglang",
            "no dist-info folder names the version of this SGLang: a checkout, or a damaged installation",
            "the version of SGLang is not known",
            "the verdicts hold for the files as they are; install the package to have its version named",
        )
    for problem in tree.unreadable:
        yield Finding(
            SOURCE,
            Severity.UNKNOWN,
            problem.path,
            f"{problem.path} {problem.reason}; what depends on it is not judged",
            "a source file cannot be judged",
            "restore the file from its wheel",
            (),
            distribution_of(tree, problem.path.partition("/")[0]),
        )
