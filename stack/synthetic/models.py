"""Write a folder of synthetic models, and read back what it promises.

Layout: ``target/``, ``drafts/NAME/`` (one each, NAME is ``two-token`` or ``full-ACCEPTANCE``) and ``synthetic.json``,
which holds everything a prediction needs. The folder is written beside its place and renamed, so a folder that is
there is whole.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from abi_checks.errors import SourceError, UsageError
from stack.synthetic import kimi, llama
from stack.synthetic.llama import HEAD_DIM, Shape
from stack.synthetic.orbit import DraftForm, Orbit, Prediction
from stack.synthetic.tensors import Tensor, write_shards
from stack.synthetic.tokenizer import write_tokenizer

DESCRIPTION = "synthetic.json"
ARCHITECTURES = {"llama": llama, "kimi-k25": kimi}
"""What a target can be: a name → the module with its ``target_config`` and ``target_shards``."""
_GENERATION = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
_CAPTURED_LAYERS = 8
"""EAGLE-3 captures the layers 2, L/2 and L-3 of the target; they are three different ones from 8 layers on."""


@dataclass(frozen=True, slots=True)
class Draft:
    """One draft: its form, and the share of tokens after which its proposal is right (1.0 for the two-token form)."""

    form: DraftForm
    acceptance: float = 1.0

    @property
    def name(self) -> str:
        return self.form.value if self.form is DraftForm.TWO_TOKEN else f"{self.form.value}-{self.acceptance:g}"


@dataclass(frozen=True, slots=True)
class SyntheticModels:
    """A folder of one target and its drafts, as ``synthetic.json`` describes it."""

    architecture: str
    shape: Shape
    seed: int
    drafts: tuple[Draft, ...]

    @property
    def orbit(self) -> Orbit:
        return Orbit(self.shape.vocabulary, self.seed)

    def draft(self, name: str) -> Draft:
        """The draft of that name."""
        for draft in self.drafts:
            if draft.name == name:
                return draft
        raise UsageError(
            f"no draft {name!r} among these models; there are: {', '.join(d.name for d in self.drafts) or 'none'}"
        )

    def predict(self, last_prompt_token: int, tokens: int, steps: int, draft: Draft | None) -> Prediction:
        """What a greedy request will answer; without a draft, or with 0 steps, nothing is speculated."""
        form, acceptance = (draft.form, draft.acceptance) if draft else (DraftForm.TWO_TOKEN, 1.0)
        return self.orbit.predict(last_prompt_token, tokens, steps if draft else 0, form, acceptance)


def check(models: SyntheticModels) -> None:
    """Refuse sizes with which the construction does not hold."""
    shape = models.shape
    if shape.layers < _CAPTURED_LAYERS:
        raise UsageError(
            f"--layers {shape.layers}: EAGLE-3 captures three different layers only from {_CAPTURED_LAYERS} layers on"
        )
    if shape.hidden % HEAD_DIM or shape.hidden < HEAD_DIM:
        raise UsageError(f"--hidden {shape.hidden}: must be a multiple of the head size, {HEAD_DIM}")
    if shape.vocabulary > shape.hidden:
        raise UsageError(
            f"--vocabulary {shape.vocabulary}: a token needs a hidden dimension of its own; --hidden is {shape.hidden}"
        )
    if shape.target_kv_heads and (shape.target_kv_heads < 0 or shape.heads % shape.target_kv_heads):
        raise UsageError(f"{shape.target_kv_heads} key-value heads do not divide the target's {shape.heads} heads")
    if shape.intermediate < 1:
        raise UsageError(f"--intermediate {shape.intermediate}: must be positive")
    if models.architecture not in ARCHITECTURES:
        raise UsageError(f"unknown architecture {models.architecture!r}; there are: {', '.join(ARCHITECTURES)}")
    names = [draft.name for draft in models.drafts]
    if len(set(names)) < len(names):
        raise UsageError(f"the same draft is asked for twice: {', '.join(names)}")


def write_models(folder: Path, models: SyntheticModels) -> int:
    """Write everything into ``folder``, which must not exist. Returns the bytes of all tensors."""
    check(models)
    if folder.exists():
        raise UsageError(f"{folder}: is already there; remove it or choose another folder")
    orbit = models.orbit
    architecture = ARCHITECTURES[models.architecture]
    target = architecture.target_shards(models.shape, orbit, models.seed)
    drafts = {
        draft: llama.draft_tensors(models.shape, orbit, draft.form, draft.acceptance, models.seed)
        for draft in models.drafts
    }
    partial = folder.with_name(folder.name + ".partial")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _require_space(folder.parent, [*target, *drafts.values()])
        shutil.rmtree(partial, ignore_errors=True)
        total = _write_model(
            partial / "target", architecture.target_config(models.shape), target, models.shape.vocabulary
        )
        architecture.write_extras(partial / "target")
        for draft, tensors in drafts.items():
            config = llama.draft_config(models.shape)
            total += _write_model(partial / "drafts" / draft.name, config, [tensors], models.shape.vocabulary)
        (partial / DESCRIPTION).write_text(json.dumps(asdict(models), indent=1), encoding="utf-8")
        partial.rename(folder)
    except OSError as error:
        raise SourceError(f"{folder}: the models could not be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return total


def _require_space(folder: Path, shards: Sequence[Sequence[Tensor]]) -> None:
    needed = sum(tensor.size for tensors in shards for tensor in tensors)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise UsageError(f"{folder}: the models need {needed / 1e9:.1f} GB and {free / 1e9:.1f} GB are free")


def _write_model(folder: Path, config: dict[str, object], shards: Sequence[Sequence[Tensor]], vocabulary: int) -> int:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    (folder / "generation_config.json").write_text(json.dumps(_GENERATION), encoding="utf-8")
    write_tokenizer(folder, vocabulary)
    return write_shards(folder, shards)


def read_models(folder: Path) -> SyntheticModels:
    """What ``folder``'s ``synthetic.json`` says."""
    path = folder / DESCRIPTION
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return SyntheticModels(
            architecture=str(document["architecture"]),
            shape=Shape(**document["shape"]),
            seed=int(document["seed"]),
            drafts=tuple(Draft(DraftForm(row["form"]), float(row["acceptance"])) for row in document["drafts"]),
        )
    except OSError as error:
        raise SourceError(
            f"{path}: cannot be read ({error.strerror}); a folder made by 'cu130-stack models make' is needed here"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise SourceError(
            f"{path}: is not a description of synthetic models ({error!r}); make the folder again"
        ) from error
