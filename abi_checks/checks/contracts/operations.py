"""Built-in functions and methods of constants that are evaluated; each is free of side effects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from abi_checks.checks.contracts.values import Unknown, Value, contains, is_concrete, truth

_PURE: dict[str, Callable[..., Value]] = {
    f.__name__: f for f in (len, int, float, str, bool, abs, min, max, sum, repr, sorted, range, round, hex)
}
_TEXT_METHODS = frozenset(
    [
        "lower",
        "upper",
        "strip",
        "lstrip",
        "rstrip",
        "split",
        "rsplit",
        "startswith",
        "endswith",
        "join",
        "replace",
        "format",
        "partition",
        "rpartition",
        "removeprefix",
        "removesuffix",
        "title",
        "capitalize",
        "isdigit",
        "isdecimal",
        "splitlines",
        "find",
        "count",
    ]
)
_MAX_RANGE = 4096


def builtin(name: str, positional: Sequence[Value], named: Mapping[str, Value]) -> Value:
    """The value of a call of a built-in function."""
    if name in ("tuple", "list", "set", "frozenset", "reversed", "iter"):
        if not positional:
            return () if name == "tuple" else []
        if isinstance(positional[0], tuple | list | dict | str | range):
            items = list(positional[0])
            return (
                tuple(items) if name in ("tuple", "set", "frozenset") else items[::-1] if name == "reversed" else items
            )
        return Unknown(f"{name}() of something unknown")
    if name == "dict":
        return dict(named) if not positional else Unknown("dict() of something unknown")
    if name in ("any", "all") and len(positional) == 1 and isinstance(positional[0], tuple | list):
        answers = [truth(item) for item in positional[0]]
        deciding = name == "any"
        return deciding if deciding in answers else Unknown(f"{name}()") if None in answers else not deciding
    if name in ("enumerate", "zip") and all(isinstance(p, tuple | list) for p in positional) and not named:
        return [
            tuple(row) for row in (enumerate(positional[0]) if name == "enumerate" else zip(*positional, strict=False))
        ]
    if name == "isinstance" and len(positional) == 2:
        return Unknown("isinstance() is not evaluated")
    if name in _PURE and all(is_concrete(v) for v in (*positional, *named.values())):
        try:
            result = _PURE[name](*positional, **named)
        except (TypeError, ValueError, ArithmeticError):
            return Unknown(f"{name}() fails")
        if isinstance(result, range):
            return list(result) if len(result) <= _MAX_RANGE else Unknown("too long to follow")
        return result
    if name == "len" and len(positional) == 1 and isinstance(positional[0], tuple | list | dict):
        return len(positional[0])
    return Unknown(f"{name}() is not evaluated")


def method_of_constant(
    owner: Value, name: str, positional: Sequence[Value], named: Mapping[str, Value]
) -> tuple[Value] | None:
    """The result of a method that leaves its object alone, in a tuple of one; None where the method may change it."""
    if isinstance(owner, dict):
        return _dictionary_method(owner, name, positional)
    if isinstance(owner, str):
        if name in _TEXT_METHODS and all(is_concrete(v) for v in (*positional, *named.values())):
            try:
                return (getattr(owner, name)(*positional, **named),)
            except (TypeError, ValueError, LookupError):
                pass
        return (Unknown(f"str.{name}() is not evaluated"),)
    if name in ("index", "count", "copy"):
        return (list(owner) if name == "copy" else Unknown(f"{name}() is not evaluated"),)
    return None if isinstance(owner, list | set) else (Unknown(f"{name}() is not evaluated"),)


def _dictionary_method(owner: dict[Value, Value], name: str, positional: Sequence[Value]) -> tuple[Value] | None:
    if name == "get" and positional:
        key = positional[0]
        known = contains(owner, key)
        if known is None or isinstance(key, list | dict):
            return (Unknown("the key is unknown"),)
        return (owner[key] if known else positional[1] if len(positional) > 1 else None,)
    if name in ("keys", "values"):
        return (list(getattr(owner, name)()),)
    if name == "items":
        return ([tuple(item) for item in owner.items()],)
    return (dict(owner),) if name == "copy" else None
