"""For all tests, before torch is imported: one thread per worker, and how types are checked."""

import functools
import inspect
import os
import types
from collections.abc import Callable, Iterator
from typing import Any, get_args, get_type_hints

import beartype
import jaxtyping
import pytest

# `pytest -n 2` has one process per core; more threads would compete for them.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# PEP 484 accepts an int as a float; beartype does not by default. The error is jaxtyping's, a TypeError.
conf = beartype.BeartypeConf(is_pep484_tower=True, violation_type=jaxtyping.TypeCheckError)
beartype.beartype = beartype.beartype(conf=conf)


def checked(target: Any = None, *, typechecker: Callable[..., Any]) -> Any:
    """What `jaxtyping.jaxtyped` does, in a fraction of the time.

    That binds the arguments of every call and checks them twice, which was half of the time of all tests.
    Here they are checked once, and the names of axes are kept only where an annotation has some.
    """
    if target is None:
        return functools.partial(checked, typechecker=typechecker)
    if inspect.isclass(target):
        if "__dataclass_fields__" in vars(target) and "__init__" in vars(target):
            target.__init__ = checked(target.__init__, typechecker=typechecker)
        return target
    hints = {name: known(hint, target.__globals__) for name, hint in target.__annotations__.items()}
    twin = types.FunctionType(target.__code__, target.__globals__, closure=target.__closure__)
    for name in ("__name__", "__qualname__", "__module__", "__defaults__", "__kwdefaults__"):
        setattr(twin, name, getattr(target, name))
    twin.__annotations__ = hints
    strict, config = typechecker(twin), jaxtyping.config

    @functools.wraps(target)
    def plain(*args, **kwargs):
        return (target if config.jaxtyping_disable else strict)(*args, **kwargs)

    @functools.wraps(target)
    def with_axes(*args, **kwargs):
        if config.jaxtyping_disable:
            return target(*args, **kwargs)
        with axes:
            return strict(*args, **kwargs)

    return with_axes if any(map(has_axes, hints.values())) else plain


def known(hint: Any, names: dict[str, Any]) -> Any:
    """An annotation; Any for the name of something that is not imported at run time."""
    holder = types.SimpleNamespace(__annotations__={"it": hint})
    try:
        return get_type_hints(holder, names, include_extras=True)["it"]
    except (NameError, AttributeError):
        return Any


def has_axes(hint: Any) -> bool:
    """Whether an array whose axes are named is part of the annotation."""
    is_array = inspect.isclass(hint) and issubclass(hint, jaxtyping.AbstractArray)
    return is_array or any(map(has_axes, get_args(hint)))


axes = jaxtyping.jaxtyped("context")
jaxtyping.jaxtyped = checked


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Call as users do, without the type checks of the tests, which would raise first."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)
