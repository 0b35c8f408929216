"""The fixed questions a server is asked, and whether its answers are those foretold."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from abi_checks.findings import Finding, Severity
from stack.serve.client import Client, Generation
from stack.serve.report import Answer
from stack.synthetic.orbit import Prediction

_PROMPT_TOKENS = 12
_NEW_TOKENS = 64
_QUESTIONS = 8
"""So many one at a time, and as many again all at once."""

Predict = Callable[[int, int], Prediction]
"""The last prompt token and the number of new tokens → what a right answer is."""


@dataclass(frozen=True, slots=True)
class Questions:
    """Prompts of token ids; ``predict`` is None where nobody knows the answers.

    ``passes``: whether the number of verification passes is foretold too.
    """

    prompts: tuple[tuple[int, ...], ...]
    predict: Predict | None
    passes: bool


def synthetic_questions(tokens: Sequence[int], predict: Predict, passes: bool) -> Questions:
    """Prompts drawn from the ordinary tokens of a synthetic model, always the same."""
    generator = random.Random("prompts")
    prompts = tuple(tuple(generator.choices(tokens, k=_PROMPT_TOKENS)) for _ in range(2 * _QUESTIONS))
    return Questions(prompts, predict, passes)


def plain_questions() -> Questions:
    """Prompts for any model: ids that every vocabulary of some thousand tokens has."""
    generator = random.Random("prompts")
    prompts = tuple(tuple(generator.choices(range(100, 1000), k=_PROMPT_TOKENS)) for _ in range(2 * _QUESTIONS))
    return Questions(prompts, None, passes=False)


def ask(client: Client, questions: Questions, timeout: float) -> tuple[Answer, ...]:
    """Ask half of the questions one at a time and the other half all at once."""
    half = len(questions.prompts) // 2
    alone, together = questions.prompts[:half], questions.prompts[half:]
    answers = [_answer(p, 1, client.generate(p, _NEW_TOKENS, timeout), questions) for p in alone]
    with ThreadPoolExecutor(len(together)) as pool:
        generations = pool.map(lambda prompt: client.generate(prompt, _NEW_TOKENS, timeout), together)
        for prompt, generation in zip(together, generations, strict=True):
            answers.append(_answer(prompt, len(together), generation, questions))
    return tuple(answers)


def _answer(prompt: tuple[int, ...], concurrency: int, generation: Generation, questions: Questions) -> Answer:
    prediction = questions.predict(prompt[-1], _NEW_TOKENS) if questions.predict else None
    return Answer(
        prompt=prompt,
        concurrency=concurrency,
        tokens=generation.tokens,
        predicted_tokens=prediction.tokens if prediction else None,
        verifications=generation.verifications,
        predicted_verifications=prediction.verifications if prediction and questions.passes else None,
        accept_length=generation.accept_length,
        predicted_accept_length=prediction.accept_length if prediction and questions.passes else None,
    )


def answer_findings(answers: tuple[Answer, ...], speculative: bool) -> tuple[Finding, ...]:
    """An error for wrong answers and one for wrong accept lengths; ``unknown`` where nothing was foretold."""
    findings = []
    if not any(answer.predicted_tokens is not None for answer in answers):
        findings.append(
            _finding(
                "answer",
                Severity.UNKNOWN,
                "the model's answers are known to nobody in advance",
                "use --models synthetic",
            )
        )
    wrong = [answer for answer in answers if answer.predicted_tokens not in (None, answer.tokens)]
    if wrong:
        first = wrong[0]
        findings.append(
            _finding(
                "answer",
                Severity.ERROR,
                f"{len(wrong)} of {len(answers)} answers differ from the predicted ones",
                "greedy decoding is wrong on this stack: compare attention backends, and run abi-check on it",
                f"prompt {first.prompt}: predicted {first.predicted_tokens}, answered {first.tokens}",
            )
        )
    if not speculative:
        return tuple(findings)
    silent = [answer for answer in answers if answer.verifications is None]
    if silent:
        findings.append(
            _finding(
                "accept-length",
                Severity.ERROR,
                f"{len(silent)} of {len(answers)} answers count no verification passes: nothing was speculated",
                "look at what the server says of its speculative settings",
            )
        )
    off = [
        a
        for a in answers
        if a.predicted_verifications is not None and a.verifications not in (None, a.predicted_verifications)
    ]
    if off:
        first = off[0]
        findings.append(
            _finding(
                "accept-length",
                Severity.ERROR,
                f"{len(off)} of {len(answers)} accept lengths differ from the predicted ones",
                "the draft does not see what it should (captured layers, token map, steps): compare the settings",
                f"prompt {first.prompt}: predicted {first.predicted_verifications} verification passes, "
                f"counted {first.verifications}",
            )
        )
    return tuple(findings)


def compare_answers(baseline: tuple[Answer, ...], speculative: tuple[Answer, ...]) -> tuple[Finding, ...]:
    """An error where a speculating server answers anything but what the same target answers without speculation."""
    pairs = list(zip(baseline, speculative, strict=True))
    wrong = [(plain, other) for plain, other in pairs if plain.tokens != other.tokens]
    if not wrong:
        return ()
    plain, other = wrong[0]
    return (
        _finding(
            "lossless",
            Severity.ERROR,
            f"{len(wrong)} of {len(pairs)} greedy answers with speculation differ from those without",
            "speculative decoding changes results on this stack; do not serve with it",
            f"prompt {plain.prompt}: without {plain.tokens}, with {other.tokens}",
        ),
    )


def _finding(check: str, severity: Severity, message: str, remedy: str, *evidence: str) -> Finding:
    return Finding(check, severity, "", message, message, remedy, evidence)
