"""The signatures: data that must agree with itself."""

import io
import string

import pytest

from abi_checks.checks import CHECKS
from stack.serve.catalogue import Kind, Match, Signature, load_catalogue
from stack.serve.diagnose import UNKNOWN, diagnose_stream

MATCHES = [(signature, match) for signature in load_catalogue() for match in signature.matches]


@pytest.mark.parametrize(("signature", "match"), MATCHES, ids=[f"{s.id}-{s.matches.index(m)}" for s, m in MATCHES])
def test_each_example_is_given_its_own_cause(signature: Signature, match: Match) -> None:
    diagnosis = diagnose_stream(io.BytesIO(match.example.encode()))
    if match.kind is Kind.CONSEQUENCE:
        assert (diagnosis.cause, diagnosis.title) == (UNKNOWN, signature.title)
    else:
        assert diagnosis.cause == signature.id
    assert diagnosis.failed is (match.kind is not Kind.DEGRADED)
    assert any(literal in match.example.encode() for literal in match.literals)


def test_every_text_of_a_signature_is_filled_in() -> None:
    for signature, match in MATCHES:
        diagnosis = diagnose_stream(io.BytesIO(match.example.encode()))
        for text in (diagnosis.title, diagnosis.meaning, diagnosis.remedy):
            assert text and not [name for _, name, _, _ in string.Formatter().parse(text) if name], signature.id


def test_every_check_named_is_a_check() -> None:
    known = {check_id for check in CHECKS for check_id in check.ids}
    assert {signature.check for signature in load_catalogue()} - {""} <= known
