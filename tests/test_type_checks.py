"""The tests call the package with its annotations checked: the `conftest.py` beside this folder."""

from dataclasses import dataclass

import beartype
import jaxtyping
import pytest
import torch
from jaxtyping import Float, TypeCheckError
from torch import Tensor

checked = jaxtyping.jaxtyped(typechecker=beartype.beartype)


@checked
def doubled(number: float, *, answer: object = None) -> float:
    return 2 * number if answer is None else answer


@checked
def product(a: Float[Tensor, "n d"], b: Float[Tensor, "d k"]) -> Float[Tensor, "n k"]:
    return (a @ b).T


@checked
def of_a_later_import(value: "NotImported") -> str:
    return str(value)


@checked
@dataclass
class Point:
    x: float


def test_the_package_is_checked():
    from tammes.geometry import sphere

    with pytest.raises(TypeCheckError):
        sphere.normalize("no tensor")


def test_arguments_results_and_fields_have_their_types():
    assert doubled(2) == 4  # an int is a float
    assert Point(1).x == 1
    with pytest.raises(TypeCheckError):
        doubled("2")
    with pytest.raises(TypeCheckError):
        doubled(2.0, answer="4")
    with pytest.raises(TypeCheckError):
        Point("1")


def test_axes_of_one_name_have_one_length_within_a_call():
    for n in (2, 3):
        assert product(torch.ones(n, 5), torch.ones(5, n)).shape == (n, n)
    with pytest.raises(TypeCheckError, match="parameter b"):
        product(torch.ones(2, 5), torch.ones(4, 2))
    with pytest.raises(TypeCheckError, match="return"):
        product(torch.ones(2, 5), torch.ones(5, 3))


def test_names_that_are_not_imported_are_not_checked():
    assert of_a_later_import(3) == "3"


def test_a_test_can_call_as_users_do(unchecked):
    assert doubled("2") == "22"
    assert Point("1").x == "1"
