"""The text form of an objective: `CosFace(s=64, m=0.35) + 0.5*R_sm + 100*R_w`, parsed without `eval`."""

import ast
import dataclasses
from typing import Any, Literal

from tammes._common import checks
from tammes.losses._registry import find_term, term_names
from tammes.losses.learnable import Learnable
from tammes.losses.objective import SHORT_NAMES, Objective, Term

LONG_NAMES = {short: long for long, short in SHORT_NAMES.items()}
LONGEST_TEXT = 1_000_000
SHOWN_TEXT = 200
"""Maximum number of characters of the text that an error message quotes."""

ObjectiveLike = Objective | str | Literal[0]
"""An objective or its text. 0 raises, but to type checkers `sum([...])` may be the 0 of `sum([])`."""


def as_objective(objective: ObjectiveLike) -> Objective:
    """`objective` itself, or parsed from its text.

    >>> as_objective("NormFace(s=5)")
    NormFace(scale=5.0, label_smoothing=0.0)
    """
    if isinstance(objective, Objective):
        return objective
    if isinstance(objective, str):
        return parse(objective)
    raise TypeError(f"objective must be an Objective or its text, got {objective!r:.200}. {EXAMPLE}")


def parse(text: str) -> Objective:
    """Parse an objective from text; `parse(str(objective)) == objective`.

    >>> parse("CosFace(s=64, m=0.35) + 0.5*R_sm") == parse("0.5 * R_sm + CosFace(scale=64, margin=0.35)")
    True
    >>> parse("CosFase(s=64)")
    Traceback (most recent call last):
    ValueError: Unknown term 'CosFase' in 'CosFase(s=64)'. Did you mean CosFace?
    """
    if not isinstance(text, str):
        raise TypeError(f"parse expects a string, got {type(text).__name__}.")
    if len(text) > LONGEST_TEXT:
        raise ValueError(
            f"The text of an objective may have at most {LONGEST_TEXT:,} characters, got {len(text):,}."
        )
    shown = text if len(text) <= SHOWN_TEXT else text[:SHOWN_TEXT] + "..."
    try:
        value = _value(_tree(text), shown)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"Cannot read the objective {shown!r}: {type(error).__name__}. {EXAMPLE}") from None
    if not isinstance(value, Objective):
        raise ValueError(f"{shown!r} does not name a term. {EXAMPLE}")
    return value


EXAMPLE = 'Write it like "CosFace(s=64, m=0.35) + 0.5*R_sm + 100*R_w".'

OPERATIONS = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
}


def _tree(text: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except ValueError as error:  # a null byte (before Python 3.12) or half a surrogate pair
        raise SyntaxError(str(error)) from None


def _value(node: ast.expr, text: str) -> Any:
    """Evaluate a syntax tree to a number, a sequence or an objective."""
    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None as constant):
            return constant
        case ast.Name(id=name):
            return _term(name, [], text)
        case ast.Call(func=ast.Name(id="Learnable"), args=[value], keywords=[]):
            return Learnable(_value(value, text))
        case ast.Call(func=ast.Name(id=name), args=[], keywords=keywords):
            return _term(name, [(word.arg, _value(word.value, text)) for word in keywords], text)
        case ast.Call(func=ast.Name(id=name)):
            raise ValueError(f"{name} takes its parameters by name, as in {name}(s=64); got {text!r}.")
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return tuple(_value(item, text) for item in items)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _apply(ast.Mult, -1, _value(operand, text), text)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATIONS:
            return _apply(type(op), _value(left, text), _value(right, text), text)
    raise ValueError(f"Cannot read {ast.unparse(node)!r} in the objective {text!r}. {EXAMPLE}")


def _apply(operation: type[ast.operator], left: Any, right: Any, text: str) -> Any:
    if not all(isinstance(side, Objective | int | float) for side in (left, right)):
        raise ValueError(f"Only terms and numbers can be added and multiplied, got {text!r}. {EXAMPLE}")
    try:
        return OPERATIONS[operation](left, right)
    except (TypeError, ZeroDivisionError, OverflowError):
        raise ValueError(
            f"Terms can be added to terms and multiplied by numbers, got {text!r}. {EXAMPLE}"
        ) from None


def _term(name: str, parameters: list[tuple[str | None, Any]], text: str) -> Term:
    """Construct the term `name`; parameters may use their short or long names."""
    kind = find_term(name)
    if kind is None:
        raise ValueError(f"Unknown term {name!r} in {text!r}. {checks.did_you_mean(name, term_names())}")
    fields = {field.name: field for field in dataclasses.fields(kind)}
    known = [*fields, *(SHORT_NAMES[field] for field in fields if field in SHORT_NAMES)]
    values: dict[str, Any] = {}
    for word, value in parameters:
        field = LONG_NAMES.get(str(word), str(word))
        if field not in fields:
            raise ValueError(
                f"{name} has no parameter {word!r} in {text!r}. {checks.did_you_mean(str(word), known)}"
            )
        if field in values:
            raise ValueError(f"{name}'s {field} is given twice in {text!r}.")
        values[field] = value
    missing = [
        SHORT_NAMES.get(field, field)
        for field, spec in fields.items()
        if field not in values and spec.default is dataclasses.MISSING
    ]
    if missing:
        example = ", ".join(f"{word}=..." for word in missing)
        raise ValueError(f"{name} needs {' and '.join(missing)}: {name}({example}); got {text!r}.")
    return kind(**values)


def text_of(objective: Objective) -> str:
    """The text that `parse` turns back into `objective`.

    >>> text_of(parse("R_sm/2 - 100*R_w + CE"))
    '0.5*R_sm - 100*R_w + CE'
    """
    text = ""
    for coefficient, term in objective.weighted_terms:
        sign = "-" if coefficient < 0 else "+"
        factor = "" if abs(coefficient) == 1 else f"{_literal(abs(coefficient))}*"
        lead = f" {sign} " if text else ("-" if coefficient < 0 else "")
        text += f"{lead}{factor}{_term_text(term)}"
    return text


def _term_text(term: Term) -> str:
    """The term's name and its non-default parameters."""
    words = [
        f"{SHORT_NAMES.get(field.name, field.name)}={_literal(getattr(term, field.name))}"
        for field in dataclasses.fields(term)
        if field.repr and getattr(term, field.name) != field.default
    ]
    return f"{term.text_name}({', '.join(words)})" if words else term.text_name


def _literal(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, Learnable):
        return f"Learnable({_literal(value.value)})"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return f'"{value}"' if isinstance(value, str) else repr(value)
