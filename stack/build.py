"""Building a stack: a list of steps that fill a new folder, and only then one rename that puts it in use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from abi_checks.api import check_environment
from abi_checks.errors import SourceError, UserError
from abi_checks.expectations import Expectations
from abi_checks.findings import Severity
from abi_checks.report import json as json_report
from abi_checks.report.interface import Report
from stack.availability import Availability
from stack.definition import StackDefinition
from stack.files import remove_tree, write_text
from stack.gate import Gate, judge_wheels
from stack.installed import beaten_winners, compare, site_packages, torch_build
from stack.lockfile import Lock
from stack.manifest import definition_digest, expectations_text, manifest_text, read_manifest
from stack.messages import listed
from stack.mismatch import describe_mismatch, refuse_damaged_files
from stack.patching import applied_series, apply_default_series
from stack.prefix import Build, StackFolder
from stack.progress import Progress
from stack.uv import hash_mismatch, run_uv
from stack.wheelmetadata import compare_metadata

CREATE_SECONDS = 120.0
INSTALL_SECONDS = 4 * 3600.0
"""For the whole download, on a slow line."""

SHOWN = 20
"""How many problems of one kind a message lists."""


@dataclass(frozen=True, slots=True)
class Job:
    """A build under way: what it is made from, where, and what the steps so far found out."""

    availability: Availability
    build: Build
    held: int
    """The descriptor of the stack's lock."""

    passed_over: Mapping[str, Mapping[str, str]]
    progress: Progress
    metadata_differences: tuple[str, ...] = ()
    gate: Gate | None = None
    report: Report | None = None

    @property
    def definition(self) -> StackDefinition:
        """The stack's definition."""
        return self.availability.definition

    @property
    def lock(self) -> Lock:
        """The stack's lock."""
        return self.availability.lock

    @property
    def expectations(self) -> Expectations:
        """What the environment is held to."""
        definition = self.definition
        return Expectations(definition.waivers, {"torch": self.lock.versions["torch"]}, definition.target_sm)


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a build; ``act`` returns the job with what it found out, or raises :class:`UserError`."""

    title: str
    act: Callable[[Job, Callable[[str], None]], Job]


def judge_before(job: Job, detail: Callable[[str], None]) -> Job:
    """Would every shared object of the wheels load? Nothing has been installed yet.

    :raises UserError: findings of severity error
    """
    gate = judge_wheels(job.lock, job.availability.wheelhouse, job.availability.interpreter.path, job.expectations)
    if gate.report:
        job.progress.say(f"  {len(gate.report.objects)} shared objects of the wheels: no errors")
    else:
        job.progress.say(f"  not judged before they are installed: {gate.why_not}")
    return replace(job, gate=gate)


def create_environment(job: Job, detail: Callable[[str], None]) -> Job:
    """An empty folder with the lock and an empty virtual environment.

    What an interrupted build left is removed, unless everything was installed in it.
    """
    if job.build.installed_from(job.lock.sha256):
        detail("going on with what was installed before")
        return job
    if job.build.folder.exists():
        detail("removing what an interrupted build left")
        remove_tree(job.build.folder)
    job.build.folder.mkdir(parents=True)
    write_text(job.build.lock, job.lock.text)
    interpreter = job.availability.interpreter
    result = run_uv(
        ["venv", "--no-project", "--no-config", "--python", str(interpreter.path), str(job.build.environment)],
        folder=job.build.folder,
        timeout=CREATE_SECONDS,
        held=[job.held],
    )
    if result.returncode:
        raise SourceError(
            f"{job.build.environment}: the environment could not be made; uv says:\n{result.messages.rstrip()}"
        )
    return job


def install(job: Job, detail: Callable[[str], None]) -> Job:
    """Exactly the lock's distributions, each file's hash required.

    uv installs in parallel, so that of two distributions with the same paths either may come last; the definition's
    winners that did not are therefore installed once more.

    :raises SourceError: a file that cannot be had, or whose hash is another; then both hashes are in the message
    """
    resumed = job.build.installed_from(job.lock.sha256)
    if not resumed:
        _run_installer(job, "sync", job.availability.requirements(), (), detail, {})
    if beaten := beaten_winners(job.build.environment, overlap_pairs(job.definition)):
        # Just installed, they are in uv's cache; it may have been emptied since an earlier installation.
        settings = {} if resumed else {"UV_OFFLINE": "1"}
        winners = job.availability.requirements(beaten)
        _run_installer(job, "install", winners, ("--reinstall", "--no-deps"), detail, settings)
    write_text(job.build.installed, f"{job.lock.sha256}\n")
    return job


def _run_installer(
    job: Job,
    command: str,
    entries: str,
    options: Sequence[str],
    detail: Callable[[str], None],
    settings: Mapping[str, str],
) -> None:
    requirements = job.build.folder / "requirements.txt"
    write_text(requirements, entries)
    source = [str(requirements)] if command == "sync" else ["--requirement", str(requirements)]
    python = job.build.environment / "bin" / "python"
    result = run_uv(
        [
            *("pip", command, *source, "--require-hashes", "--only-binary", ":all:", "--python", str(python)),
            *(*job.availability.index_options, *options),
        ],
        folder=job.build.folder,
        timeout=INSTALL_SECONDS,
        settings=settings,
        held=[job.held],
        on_message=detail,
    )
    if result.returncode:
        if mismatch := hash_mismatch(result.messages):
            raise SourceError(describe_mismatch(job.definition, *mismatch))
        refuse_damaged_files(job.availability)
        raise SourceError(f"{job.definition.name} could not be installed; uv says:\n{result.messages.rstrip()}")
    requirements.unlink()


def patch(job: Job, detail: Callable[[str], None]) -> Job:
    """The source patches that are on by default for what is installed.

    :raises UserError: a file is not exactly the one that a patch was made for
    """
    for applied in apply_default_series(job.build.environment):
        job.progress.say(f"  {applied.name} ({applied.distribution} {applied.version})")
    return job


def check_metadata(job: Job, detail: Callable[[str], None]) -> Job:
    """What the definition states about wheels on no index, compared with the wheels.

    :raises UserError: a wheel requires what the lock does not have
    """
    found = compare_metadata(job.definition, job.lock, site_packages(job.build.environment))
    for difference in found.differences:
        job.progress.say(f"  differs from the definition's statement: {difference}")
    if found.unmet:
        raise UserError(
            listed(f"the lock of {job.definition.name} does not have what its wheels require:", found.unmet, SHOWN)
            + f"\nCorrect requires_dist in {job.definition.path}, and make the lock again with `cu130-stack lock`."
        )
    return replace(job, metadata_differences=found.differences)


def verify(job: Job, detail: Callable[[str], None]) -> Job:
    """What is installed is the lock, no more and no less, with every file of every RECORD; torch is the build meant.

    :raises UserError: naming what is not
    """
    problems = list(compare(job.build.environment, job.lock.versions, overlap_pairs(job.definition)).problems)
    torch = torch_build(site_packages(job.build.environment))
    if torch != job.definition.torch:
        problems.append(f"torch calls itself {torch or 'nothing'}, and the definition says {job.definition.torch}")
    if problems:
        job.build.installed.unlink(missing_ok=True)
        title = f"{job.build.environment} is not what its lock says:"
        raise UserError(listed(title, problems, SHOWN) + "\nBuild again to start anew.")
    return job


def judge(job: Job, detail: Callable[[str], None]) -> Job:
    """Will every shared object load? The report is kept beside the environment.

    :raises UserError: findings of severity error
    """
    write_text(job.build.waivers, expectations_text(job.expectations))
    report = check_environment(job.build.environment, job.expectations)
    write_text(job.build.report, json_report.render(report))
    if report.exit_code:
        errors = [finding for finding in report.findings if finding.effective_severity is Severity.ERROR]
        raise UserError(
            listed("the ABI check found errors:", [f"{finding.object}: {finding.message}" for finding in errors], SHOWN)
            + f"\nThe stack in use is as it was. For the whole report: abi-check {job.build.environment}"
        )
    warnings, waived = report.count(Severity.WARNING), sum(bool(finding.waived) for finding in report.findings)
    unknown = report.count(Severity.UNKNOWN)
    counts = f"no errors, {warnings} warnings, {unknown} unknown, {waived} findings waived"
    job.progress.say(f"  {len(report.objects)} shared objects: {counts}")
    return replace(job, report=report)


def record(job: Job, detail: Callable[[str], None]) -> Job:
    """Write the manifest, which makes the build a complete one."""
    findings = tuple(job.report.findings) if job.report else ()
    write_text(
        job.build.manifest,
        manifest_text(
            job.availability,
            job.passed_over,
            job.metadata_differences,
            job.gate.report is not None if job.gate else False,
            findings,
            applied_series(job.build.environment),
        ),
    )
    job.build.installed.unlink(missing_ok=True)
    return job


FILL = (
    Step("judge the wheels", judge_before),
    Step("make the environment", create_environment),
    Step("install with hashes required", install),
    Step("apply the source patches", patch),
)
JUDGE = (
    Step("verify against the lock", verify),
    Step("compare stated with real metadata", check_metadata),
    Step("check the ABI", judge),
    Step("write the manifest", record),
)


def run_steps(job: Job, steps: Sequence[Step]) -> Job:
    """Run the steps one after the other, each on what the one before returned."""
    for step in steps:
        with job.progress.step(step.title) as detail:
            job = step.act(job, detail)
    return job


def build_stack(
    availability: Availability, folder: StackFolder, passed_over: Mapping[str, Mapping[str, str]], progress: Progress
) -> Build:
    """Build the stack of ``availability`` unless it is there already, and put it in use.

    A build that stops at any point, for whatever reason, leaves the stack in use as it was.

    :raises UserError: naming the step's finding; SourceError where something could not be had
    """
    with folder.exclusive(progress.say) as held:
        build = folder.build(availability.lock.build_name)
        if build.complete and reuse(build, availability.definition, availability.lock):
            progress.say("  already built and unchanged: nothing to install")
        else:
            steps = JUDGE if build.complete else FILL + JUDGE
            try:
                run_steps(Job(availability, build, held, passed_over, progress), steps)
            except OSError as error:
                raise UserError(f"{build.folder}: the build stopped: {error}. The stack in use is as it was") from error
        folder.switch(build)
    return build


def reuse(build: Build, definition: StackDefinition, lock: Lock) -> bool:
    """Whether a complete build stands as it is: judged under this state of the definition, and unchanged since.

    :raises UserError: it was changed since
    """
    problems = compare(build.environment, lock.versions, overlap_pairs(definition)).problems
    if problems:
        raise UserError(
            listed(f"{build.environment} was changed after it was built:", problems, SHOWN)
            + f"\nStop what uses it, remove {build.folder} and build again."
        )
    return bool(read_manifest(build.manifest).get("definition_sha256") == definition_digest(definition.path))


def overlap_pairs(definition: StackDefinition) -> tuple[tuple[str, str], ...]:
    """The definition's overlaps as pairs of winner and loser."""
    return tuple((overlap.winner, overlap.over) for overlap in definition.overlaps)
