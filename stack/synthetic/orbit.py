"""What a synthetic pair will say: the permutation, the draft's mistakes, and predictions by walking the orbit.

The target maps every token t to its successor P(t), where P is one cycle through all *ordinary* tokens. Every other
token (specials, single bytes outside printable ASCII) behaves as one fixed ordinary token, so that any prompt has a
known continuation and no special token is ever produced.

The draft proposes what P says except after a prescribed set of tokens. With greedy sampling a proposal is accepted
if and only if it is right, so the number of verification passes of a request follows from its last prompt token,
its length and the number of steps; nothing about it is a statistic.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from abi_checks.errors import UsageError
from stack.synthetic.tokenizer import ordinary_tokens


class DraftForm(StrEnum):
    """How a draft is built, and with it what it can predict."""

    TWO_TOKEN = "two-token"
    """Looks at the hidden state only: its first proposal is always right, every later one wrong."""
    FULL = "full"
    """Looks at the token it has just seen: right except after the prescribed share of tokens."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """One greedy request, foretold.

    ``tokens`` are the generated ids. ``verifications`` counts the target's verification passes (the first token comes
    from prefill and needs none). ``accepted`` holds the right proposals of each pass, in order; the last pass may
    accept more than the request still had room for. ``accept_length`` is tokens per verification pass, which is how
    SGLang reports ``spec_accept_length`` of a request (0.0 where no pass was needed).
    """

    tokens: tuple[int, ...]
    verifications: int
    accepted: tuple[int, ...]

    @property
    def accept_length(self) -> float:
        return len(self.tokens) / self.verifications if self.verifications else 0.0


@dataclass(frozen=True)
class Orbit:
    """The cycle P of one vocabulary and seed."""

    vocabulary: int
    seed: int

    @cached_property
    def cycle(self) -> tuple[int, ...]:
        """The ordinary tokens in the order in which each follows the one before."""
        tokens = list(ordinary_tokens(self.vocabulary))
        random.Random(f"cycle {self.seed}").shuffle(tokens)
        return tuple(tokens)

    @cached_property
    def _position(self) -> dict[int, int]:
        return {token: place for place, token in enumerate(self.cycle)}

    def ordinary(self, token: int) -> int:
        """The ordinary token as which ``token`` behaves."""
        if not 0 <= token < self.vocabulary:
            raise UsageError(f"token {token} is outside the vocabulary of {self.vocabulary}")
        return token if token in self._position else self.cycle[token % len(self.cycle)]

    def successor(self, token: int, steps: int = 1) -> int:
        """P applied ``steps`` times."""
        return self.cycle[(self._position[self.ordinary(token)] + steps) % len(self.cycle)]

    def mistakes(self, acceptance: float) -> dict[int, int]:
        """The tokens after which a draft of this acceptance is wrong, each with what it proposes instead.

        The successors of those tokens are passed round among themselves, so no proposal is ever missing. Fewer than
        two mistakes cannot be passed round: the share is rounded to 0 or to at least 2 tokens.
        """
        if not 0.0 <= acceptance <= 1.0:
            raise UsageError(f"acceptance must lie between 0 and 1, not {acceptance}")
        count = round((1.0 - acceptance) * len(self.cycle))
        if count == 1:
            count = 2
        wrong = random.Random(f"mistakes {self.seed}").sample(self.cycle, count)
        return {token: self.successor(wrong[(place + 1) % count]) for place, token in enumerate(wrong)}

    def predict(
        self, last_prompt_token: int, tokens: int, steps: int, form: DraftForm, acceptance: float
    ) -> Prediction:
        """A greedy request of ``tokens`` new tokens, drafted ``steps`` ahead; ``steps`` 0 means no speculation."""
        if tokens < 1 or steps < 0:
            raise UsageError(f"cannot predict {tokens} tokens with {steps} speculative steps")
        first = self.ordinary(last_prompt_token)
        output = tuple(self.successor(first, count) for count in range(1, tokens + 1))
        if not steps:
            return Prediction(output, 0, ())
        wrong = self.mistakes(acceptance) if form is DraftForm.FULL else {}
        accepted: list[int] = []
        produced = 1
        while produced < tokens:
            right = 1
            if form is DraftForm.FULL:
                right = 0
                while right < steps and self.successor(first, produced + right) not in wrong:
                    right += 1
            accepted.append(right)
            produced += right + 1
        return Prediction(output, len(accepted), tuple(accepted))
