"""Utilities for hand-written backward passes: second derivatives and `torch.func` transforms."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor


def transforming() -> bool:
    """Whether a `torch.func` transform (grad, jvp, vmap) is active.

    Under a transform, tensors are wrappers without accessible storage or values, so only ordinary torch
    operations work.
    """
    return torch._C._are_functorch_transforms_active()


def recorded(gradients: Iterable[Tensor | None]) -> bool:
    """Whether a `backward` may use only operations that autograd and `vmap` support.

    Autograd records them under `create_graph=True`. Batched gradients (`is_grads_batched=True`, as in
    `torch.autograd.functional.hessian(..., vectorize=True)`) arrive as tensors that wrap the whole batch.
    """
    batched = torch._C._functorch.is_legacy_batchedtensor  # pyright: ignore[reportAttributeAccessIssue]
    return torch.is_grad_enabled() or any(g is not None and batched(g) for g in gradients)


def vector_jacobian(
    function: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor], upstream: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Vector-Jacobian product of `function` at `inputs` with the output gradients `upstream`, by autograd.

    For use in the `backward` of a `torch.autograd.Function` under `create_graph=True`, where the result must
    itself be differentiable. Inputs are aliased first: one may be computed from another, and gradients along
    that path belong to the outer graph.
    """
    with torch.enable_grad():
        aliases = [x.view_as(x) for x in inputs]
        outputs = function(*aliases)
    return gradients_of(outputs, aliases, upstream)


def gradients_of(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], upstream: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """`torch.autograd.grad` that gives None for what is not reached or not asked for; may be called again.

    The first call in a process imports sympy, 35 MB, because torch compares symbolic shapes of outputs and
    `upstream`; `gradients_of_scalar` does not.
    """
    reached = [(y, g) for y, g in zip(outputs, upstream, strict=True) if g is not None and y.requires_grad]
    wanted = [x for x in inputs if x.requires_grad]
    if not reached or not wanted:
        return [None] * len(inputs)
    roots, gradients = zip(*reached, strict=True)
    record = torch.is_grad_enabled()
    found = iter(
        torch.autograd.grad(
            roots, wanted, gradients, retain_graph=True, create_graph=record, allow_unused=True
        )
    )
    return [next(found) if x.requires_grad else None for x in inputs]


def gradients_of_scalar(output: Tensor, inputs: Sequence[Tensor]) -> list[Tensor | None]:
    """Gradients of `output`, a single number; None for what is not reached or not asked for."""
    wanted = [x for x in inputs if x.requires_grad]
    if not output.requires_grad or not wanted:
        return [None] * len(inputs)
    found = iter(torch.autograd.grad(output, wanted, allow_unused=True))
    return [next(found) if x.requires_grad else None for x in inputs]
