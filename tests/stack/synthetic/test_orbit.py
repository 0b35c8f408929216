"""Predictions follow from the cycle alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abi_checks.errors import UsageError
from stack.synthetic.orbit import DraftForm, Orbit
from stack.synthetic.tokenizer import ordinary_tokens

ORBIT = Orbit(320, 3)


def test_one_cycle_through_all_ordinary_tokens():
    token, seen = ORBIT.cycle[0], []
    for _ in ORBIT.cycle:
        seen.append(token)
        token = ORBIT.successor(token)
    assert token == ORBIT.cycle[0]
    assert sorted(seen) == sorted(ordinary_tokens(320))
    assert Orbit(320, 4).cycle != ORBIT.cycle
    assert Orbit(320, 3).cycle == ORBIT.cycle


@pytest.mark.parametrize(
    ("acceptance", "count"), [(1.0, 0), (0.0, 156), (0.5, 78), (0.8, 31), (1 - 1 / 156, 2), (1 - 0.4 / 156, 0)]
)
def test_mistakes_are_always_wrong_and_never_missing(acceptance, count):
    wrong = ORBIT.mistakes(acceptance)
    assert len(wrong) == count
    assert all(proposal != ORBIT.successor(token) for token, proposal in wrong.items())
    assert sorted(wrong.values()) == sorted(ORBIT.successor(token) for token in wrong)


def test_no_speculation_predicts_the_tokens_only():
    prediction = ORBIT.predict(ORBIT.cycle[0], 5, 0, DraftForm.FULL, 0.5)
    assert prediction.tokens == ORBIT.cycle[1:6]
    assert (prediction.verifications, prediction.accepted, prediction.accept_length) == (0, (), 0.0)


def test_extreme_drafts():
    def lengths(form, acceptance, steps):
        return ORBIT.predict(40, 33, steps, form, acceptance).accepted

    assert lengths(DraftForm.FULL, 1.0, 3) == (3,) * 8
    assert lengths(DraftForm.FULL, 0.0, 3) == (0,) * 32
    assert lengths(DraftForm.TWO_TOKEN, 1.0, 7) == (1,) * 16


@given(st.integers(0, 319), st.integers(1, 90), st.integers(1, 8), st.sampled_from([0.0, 0.3, 0.5, 0.8, 1.0]))
def test_the_walk_against_a_server_simulated_token_by_token(prompt, count, steps, acceptance):
    wrong = ORBIT.mistakes(acceptance)
    produced, accepted = [ORBIT.successor(prompt)], []
    while len(produced) < count:
        proposals, token = [], produced[-1]
        for _ in range(steps):
            token = wrong.get(token, ORBIT.successor(token))
            proposals.append(token)
        truth, token = [], produced[-1]
        for _ in range(steps + 1):
            token = ORBIT.successor(token)
            truth.append(token)
        right = next((n for n in range(steps) if proposals[n] != truth[n]), steps)
        accepted.append(right)
        produced += truth[: right + 1]
    prediction = ORBIT.predict(prompt, count, steps, DraftForm.FULL, acceptance)
    assert prediction.accepted == tuple(accepted)
    assert prediction.tokens == tuple(produced[:count])
    assert prediction.accept_length == (count / len(accepted) if accepted else 0.0)


@pytest.mark.parametrize("call", [lambda: ORBIT.successor(320), lambda: ORBIT.mistakes(1.1)])
def test_nonsense_is_refused(call):
    with pytest.raises(UsageError):
        call()


def test_no_tokens_are_refused():
    with pytest.raises(UsageError):
        ORBIT.predict(5, 0, 1, DraftForm.FULL, 1.0)
