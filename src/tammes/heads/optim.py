"""Row-wise optimizers: SGD and AdamW that update only the rows present in a sparse gradient.

Each row is optimized independently: a row that is absent from the gradient keeps its value, momentum and step
count bit for bit. (torch's SGD keeps moving such rows by their momentum, its AdamW rejects sparse gradients,
and its SparseAdam has no weight decay and a single step count.) When every gradient contains every row, as
dense gradients do, the steps equal those of `torch.optim.SGD` and `torch.optim.AdamW`.

State is dense, as large as the parameter, and allocated once. A step costs time and memory proportional to
the rows it updates.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.optim import Optimizer

from tammes._common import checks
from tammes._common.row_blocks import double

SampledRows = Int[Tensor, " m"] | None
"""Row indices of a tensor; None for all rows."""

BLOCK_ROWS = 4096
"""Sparse rows to update at a time: few enough that their copies stay in cache."""


class RowSGD(Optimizer):
    """Row-wise SGD, with the arguments and the state (`momentum_buffer`) of `torch.optim.SGD`.

    >>> weight = torch.nn.Parameter(torch.ones(3, 2))
    >>> weight.grad = torch.sparse_coo_tensor([[1]], torch.ones(1, 2), (3, 2), check_invariants=True)
    >>> RowSGD([weight], lr=0.5, momentum=0.9, weight_decay=0.1).step()
    >>> weight.data
    tensor([[1.0000, 1.0000],
            [0.4500, 0.4500],
            [1.0000, 1.0000]])
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "nesterov": nesterov}
        _check_not_negative(defaults, "lr", "momentum", "weight_decay")
        if nesterov and not momentum:
            raise ValueError("nesterov=True requires momentum > 0, got 0. A common value is 0.9.")
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update the rows in the gradients; returns the value of `closure`, if there is one."""
        loss = _evaluate(closure)
        for group in self.param_groups:
            for param in _with_gradient(group):
                state = self.state[param]
                if group["momentum"] and not state:
                    state["momentum_buffer"] = torch.zeros_like(param)
                for rows, grad in _blocks(param):
                    _move(param, rows, grad, group, state.get("momentum_buffer"))
        return loss


def _move(
    param: Tensor, rows: SampledRows, grad: Tensor, group: dict[str, Any], buffer: Tensor | None
) -> None:
    """One SGD step on `rows`; `buffer` holds their momentum."""
    momentum = group["momentum"]
    old = _take(param, rows)
    update = grad.add(old, alpha=group["weight_decay"])
    if momentum:
        assert buffer is not None
        velocity = _take(buffer, rows).mul(momentum).add_(update)
        _put(buffer, rows, velocity)
        update = update.add_(velocity, alpha=momentum) if group["nesterov"] else velocity
    _put(param, rows, old.sub(update, alpha=group["lr"]))


class RowAdamW(Optimizer):
    """Row-wise AdamW, with the arguments of `torch.optim.AdamW`.

    State: `exp_avg` and `exp_avg_sq`, each shaped like the parameter, and `step`, one count per row. A row
    first sampled at step 1000 has its moments bias-corrected as at step 1.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        _check_not_negative(defaults, "lr", "eps", "weight_decay")
        for place, beta in enumerate(betas):
            checks.within(f"betas[{place}]", beta, 0.0, math.nextafter(1.0, 0.0))
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update the rows in the gradients; returns the value of `closure`, if there is one."""
        loss = _evaluate(closure)
        for group in self.param_groups:
            for param in _with_gradient(group):
                for rows, grad in _blocks(param):
                    first, second = self._moments(param, rows, grad, group["betas"])
                    decayed = _take(param, rows).mul(1 - group["lr"] * group["weight_decay"])
                    update = first.div_(second.sqrt_().add_(group["eps"]))
                    _put(param, rows, decayed.sub_(update, alpha=group["lr"]))
        return loss

    def _moments(
        self, param: Tensor, rows: SampledRows, grad: Tensor, betas: tuple[float, float]
    ) -> list[Tensor]:
        """Update and store both moments of the rows, and return them bias-corrected."""
        state = self.state[param]
        if not state:
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(param), torch.zeros_like(param)
            state["step"] = torch.zeros(param.shape[:1], device=param.device)
        # Optimizer.load_state_dict leaves "step" on the device it was loaded to.
        state["step"] = state["step"].to(param.device)
        steps = _take(state["step"], rows) + 1
        _put(state["step"], rows, steps)
        corrected = []
        for name, beta, value in zip(("exp_avg", "exp_avg_sq"), betas, (grad, grad.square()), strict=True):
            moment = _take(state[name], rows).lerp(value, 1 - beta)
            _put(state[name], rows, moment)
            corrected.append(moment / _correction(beta, steps, moment))
        return corrected


def _correction(beta: float, steps: Float[Tensor, "..."], like: Tensor) -> Tensor:
    """1 - beta^t for each row; the float32 difference would lose three digits at beta = 0.999."""
    factor = -torch.expm1(double(steps) * (math.log(beta) if beta else -math.inf))
    return factor.to(like.dtype).view(*factor.shape, *[1] * (like.ndim - factor.ndim))


def _check_not_negative(values: dict[str, Any], *names: str) -> None:
    for name in names:
        checks.within(name, values[name], 0.0, math.inf)


def _evaluate(closure: Callable[[], Any] | None) -> Any:
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def _with_gradient(group: dict[str, Any]) -> list[Tensor]:
    return [param for param in group["params"] if param.grad is not None]


def _blocks(param: Tensor) -> list[tuple[SampledRows, Tensor]]:
    """The row indices and values of `param`'s gradient, in blocks of `BLOCK_ROWS`."""
    grad = param.grad
    assert grad is not None
    if not grad.is_sparse:
        return [(None, grad)]
    if grad.sparse_dim() != 1:
        raise ValueError(
            f"A sparse gradient must have one sparse dimension, its rows, got {grad.sparse_dim()} "
            f"for a parameter of shape {tuple(param.shape)}."
        )
    grad = grad.coalesce()
    return list(zip(grad.indices()[0].split(BLOCK_ROWS), grad.values().split(BLOCK_ROWS), strict=True))


def _take(whole: Tensor, rows: SampledRows) -> Tensor:
    return whole if rows is None else whole.index_select(0, rows)


def _put(whole: Tensor, rows: SampledRows, values: Tensor) -> None:
    """Write `values` to the given rows of `whole`."""
    if rows is None:
        whole.copy_(values)
    else:
        whole.index_copy_(0, rows, values)
