"""From what a user names (a stack or an environment, a profile, models) to a launch with its expected answers."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from abi_checks.errors import SourceError, UsageError
from abi_checks.findings import Finding, Severity
from stack.definition import load_definition, stack_names
from stack.prefix import StackFolder
from stack.serve.launch import ALGORITHM, Launch, check_draft, merge_options
from stack.serve.modelfolder import check_model_folder, check_pair
from stack.serve.questions import Questions, plain_questions, synthetic_questions
from stack.synthetic.llama import Shape
from stack.synthetic.models import DESCRIPTION, Draft, SyntheticModels, read_models, write_models
from stack.synthetic.orbit import DraftForm

SYNTHETIC = "synthetic"
_DEFAULT_MODELS = SyntheticModels(
    "llama", Shape(layers=8, hidden=512, intermediate=1024, vocabulary=512), 0, (Draft(DraftForm.FULL, 0.8),)
)
"""What ``--models synthetic`` means: small, and with a draft that is sometimes wrong."""
_VERSIONS = """\
import importlib.metadata as metadata
for name in ("sglang", "torch", "sglang-kernel", "sgl-kernel", "flashinfer-python", "transformers", "triton"):
    try:
        print(name, metadata.version(name))
    except metadata.PackageNotFoundError:
        pass
"""


@dataclass(frozen=True, slots=True)
class Models:
    """A target with a draft, or without (None); ``synthetic`` where their answers are known."""

    target: Path
    draft: Path | None
    synthetic: SyntheticModels | None

    def questions(self, steps: int | None) -> Questions:
        """What to ask, and the right answers for so many speculative steps (None: a number that may change)."""
        known = self.synthetic
        if known is None:
            return plain_questions()
        draft = known.draft(self.draft.name) if self.draft else None
        return synthetic_questions(
            known.orbit.cycle,
            lambda token, count: known.predict(token, count, steps or 0, draft),
            passes=bool(draft and steps),
        )


def stack_environment(prefix: Path, stack: str | None, environment: Path | None) -> tuple[str, Path]:
    """The stack's name, whose profiles hold, and the Python to start: of ``environment``, or of the build in use."""
    if environment:
        python = environment / "bin" / "python"
        if not python.exists():
            raise SourceError(f"{environment}: is no environment of Python, there is no bin/python in it")
        return stack or stack_names()[0], python.absolute()
    names = [stack] if stack else list(stack_names())
    for name in names:
        build = StackFolder(prefix / name).current
        if build:
            return name, build.environment / "bin" / "python"
    raise SourceError(
        f"{prefix}: no build of {' or '.join(names)} is in use there. Build one with `cu130-stack build`, or name "
        f"the place with --prefix or any environment with --env"
    )


def profile_options(stack: str, profile: str, changes: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """The options of a stack's launch profile, with the user's changes."""
    profiles = {known.name: known for known in load_definition(stack).profiles}
    if profile not in profiles:
        raise UsageError(f"stack {stack} has no profile {profile!r}; it has: {', '.join(profiles) or 'none'}")
    return merge_options(profiles[profile].options, changes)


def choose_models(named: str, draft: str | None, speculative: bool) -> Models:
    """``synthetic``, a folder of synthetic models, or the folder of any target (``draft`` is then a folder too)."""
    folder = _default_models() if named == SYNTHETIC else Path(named).absolute()
    if not folder.is_dir():
        raise SourceError(f"{folder}: there is no such folder; name one with --models, or say --models {SYNTHETIC}")
    if not (folder / DESCRIPTION).is_file():
        models = Models(folder, Path(draft).absolute() if draft else None, None)
    else:
        known = read_models(folder)
        if speculative and draft is None and known.drafts:
            draft = known.drafts[0].name
        chosen = folder / "drafts" / known.draft(draft).name if draft else None
        models = Models(folder / "target", chosen, known)
    for part in filter(None, (models.target, models.draft)):
        check_model_folder(part)
    if models.draft:
        check_pair(models.target, models.draft)
    return models


def _default_models() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    shape = _DEFAULT_MODELS.shape
    folder = cache / "cu130-stack" / "models" / f"llama-{shape.layers}x{shape.hidden}"
    if folder.is_dir() and read_models(folder) != _DEFAULT_MODELS:
        shutil.rmtree(folder)
    if not folder.is_dir():
        write_models(folder, _DEFAULT_MODELS)
    return folder


def make_launch(python: Path, models: Models, options: tuple[tuple[str, str], ...], tp: int, port: int) -> Launch:
    """The launch of these models with these options."""
    if tp < 1:
        raise UsageError(f"--tp {tp}: at least one GPU is needed")
    known = dict(options)
    check_draft(known, models.draft)
    return Launch(python, models.target, models.draft if ALGORITHM in known else None, options, tp, port)


def installed_versions(python: Path) -> tuple[tuple[str, str], ...]:
    """Versions of what matters, as that Python's own metadata has them."""
    try:
        answer = subprocess.run(
            [str(python), "-c", _VERSIONS],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            start_new_session=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise SourceError(f"{python}: does not run: {error}") from error
    return tuple((name, version) for name, _, version in (line.partition(" ") for line in answer.stdout.splitlines()))


def toolkit_findings(launch: Launch) -> tuple[Finding, ...]:
    """A warning where kernels cannot be compiled on first use because there is no nvcc where it is looked for."""
    environment = launch.environment()
    home = environment.get("CUDA_HOME")
    if home:
        if (Path(home) / "bin" / "nvcc").is_file():
            return ()
        message = f"CUDA_HOME is {home} and there is no bin/nvcc in it"
    elif shutil.which("nvcc", path=environment["PATH"]) or Path("/usr/local/cuda/bin/nvcc").is_file():
        return ()
    else:
        message = "there is no CUDA compiler: CUDA_HOME is not set and nvcc is not on PATH"
    return (
        Finding(
            check="cuda-toolkit",
            severity=Severity.WARNING,
            object="",
            message=message,
            cause="flashinfer compiles kernels on first use and needs nvcc",
            remedy="set CUDA_HOME to a toolkit of the stack's CUDA version; only a warm kernel cache does without",
        ),
    )
