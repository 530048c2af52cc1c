"""`PrototypeHead`: the last layer and the loss of a classifier, in one module."""

import math
import warnings
from collections.abc import Sequence
from typing import Any, Literal

import torch
from jaxtyping import Int
from torch import Tensor, nn

from tammes import checks
from tammes.geometry.bounds import largest_class_margin
from tammes.geometry.margins import class_margin
from tammes.geometry.sphere import normalize, turned
from tammes.heads.sampled import ClassSampler
from tammes.heads.streamed import BUFFER_BYTES, LEAN_BUFFER_BYTES, auto_block, streamed, top_classes
from tammes.heads.workspace import Workspace
from tammes.losses.advice import warnings_for
from tammes.losses.evaluate import (
    Producer,
    Reduction,
    check_per_class,
    class_value_tensors,
    loss_of_batch,
    working_dtype,
)
from tammes.losses.labels import IGNORE_INDEX, MixedLabels
from tammes.losses.objective import Objective, logit_space
from tammes.losses.statistics import Plan, Statistics, Targets, dense, similarities
from tammes.types import Embeddings, Prototypes, Scalar, Similarities

Init = Literal["random", "packed"]


def packed(k: int, d: int) -> Prototypes:
    """k prototypes as far apart as they can be, in an orientation that no axis is special in.

    As `pack` has them, one can lie opposite to all axes, where no feature of a ReLU ever comes. The
    orientation is the same whatever the seed, so that the ranks of a sharded head agree on it.
    """
    from tammes.geometry.packing import pack

    return turned(pack(k, d).points, torch.Generator().manual_seed(0))


class PrototypeHead(nn.Module):
    """Prototypes of `num_classes` classes in `in_features` dimensions, and the objective they learn by.

    Args:
        in_features: d, the width of the embeddings.
        num_classes: k.
        objective: what `head(embeddings, labels)` returns; may be reassigned at any time.
        class_counts: samples per class, for LDAM.
        class_weight: a weight per class, as torch's `weight`.
        ignore_index: the label of rows that do not count.
        init: "random" unit vectors, or "packed": as far apart as they can be.
        trainable: False keeps the prototypes where they start.
        block_size: classes per block of the streamed computation. "auto" also keeps up to 256 MiB of
            similarities for the backward, a number only 32; None is the plain dense reference, which can
            be differentiated twice.
        fast_products: run the matrix products in autocast's dtype; sums stay in float32.
        sample_rate: train on the classes of the batch and this share of the others, drawn anew each step;
            the gradient of `weight` is sparse, for `RowSGD` or `RowAdamW`. In `eval()` all classes count.

    >>> from tammes.losses import CosFace, SampleMargin
    >>> head = PrototypeHead(4, 3, CosFace(scale=8, margin=0.2) + 0.5 * SampleMargin())
    >>> head(torch.randn(5, 4), torch.tensor([0, 1, 2, 1, 0])).shape
    torch.Size([])
    >>> head(torch.randn(5, 4)).shape
    torch.Size([5, 3])
    """

    weight: nn.Parameter
    class_counts: Tensor | None
    class_weight: Tensor | None

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        objective: Objective,
        *,
        class_counts: Tensor | Sequence[float] | None = None,
        class_weight: Tensor | Sequence[float] | None = None,
        ignore_index: int = IGNORE_INDEX,
        init: Init = "random",
        trainable: bool = True,
        block_size: int | Literal["auto"] | None = "auto",
        fast_products: bool = False,
        sample_rate: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features = checks.at_least("in_features", in_features, 1)
        self.num_classes = checks.at_least("num_classes", num_classes, 2)
        self.ignore_index = ignore_index
        if isinstance(block_size, int):
            checks.at_least("block_size", block_size, 1)
        elif block_size is not None:
            checks.one_of("block_size", block_size, ("auto",))
        self.block_size = block_size
        self.fast_products = fast_products
        self._workspace = Workspace()
        self.terms: dict[str, Tensor] = {}
        checks.one_of("init", init, ("random", "packed"))
        first, last = self.class_range
        weight = torch.empty(last - first, in_features, device=device, dtype=dtype)
        self.weight = nn.Parameter(weight, requires_grad=trainable)
        self.sampler: ClassSampler | None = None
        self._register_class_counts(class_counts)
        self._register_class_weight(class_weight)
        self.reset_parameters(init)
        if sample_rate is not None:  # after the prototypes, which start alike with and without sampling
            self.sampler = ClassSampler(sample_rate, self.weight)
        self.objective = objective
        self._advise()

    @property
    def class_range(self) -> tuple[int, int]:
        """First and last + 1 of the classes whose prototypes are rows of `weight` here."""
        return 0, self.num_classes

    def _register_class_counts(self, counts: Tensor | Sequence[float] | None) -> None:
        if counts is not None:
            counts = check_per_class("class_counts", counts, self.num_classes)
            counts = counts.to(self.weight.device, copy=True)
        self.register_buffer("class_counts", counts)

    def _register_class_weight(self, weight: Tensor | Sequence[float] | None) -> None:
        if weight is not None:
            weight = check_per_class("class_weight", weight, self.num_classes, zero=True)
            # Floating even if given as integers: loading fractions into an integer buffer would cut them.
            weight = weight.to(self.weight.device, working_dtype(weight), copy=True)
        self.register_buffer("class_weight", weight)

    def reset_parameters(self, init: Init = "random") -> None:
        """Prototypes anew: random unit vectors, or packed as far apart as they can be."""
        with torch.no_grad():
            if init == "packed":
                self.weight.copy_(packed(self.num_classes, self.in_features))
            else:
                for rows in self.weight.split(8192):  # ten million have no room for a second copy
                    rows.copy_(normalize(torch.randn(rows.shape, device=rows.device)))
        if self.sampler is not None:
            self.sampler.sums.forget()

    @property
    def objective(self) -> Objective:
        """What the head minimises; assign another one for a margin warm-up."""
        return self._objective

    @objective.setter
    def objective(self, objective: Objective) -> None:
        if not isinstance(objective, Objective):
            raise TypeError(
                f"objective must be an Objective, got {type(objective).__name__}. "
                "From text: tammes.parse(...)."
            )
        tables = class_value_tensors(objective, self.num_classes, self.class_counts, self.weight)
        self._objective = objective
        self._store_class_values(tables)

    def _advise(self) -> None:
        """Warn of scales that do not suit the number of classes, in the name of the constructor's caller."""
        gamma = 1 - math.cos(largest_class_margin(self.num_classes, self.in_features).angle)
        for line in warnings_for(self.objective, self.num_classes, gamma):
            warnings.warn(line, stacklevel=3)

    def _store_class_values(self, tables: dict[tuple[int, str], Tensor]) -> None:
        """Tables as buffers, so that they move with the module, but are not saved: the objective has them."""
        for name in [name for name in self._buffers if name.startswith("_table_")]:
            delattr(self, name)
        self._tables = {key: "_table_{}_{}".format(*key) for key in tables}
        for key, name in self._tables.items():
            self.register_buffer(name, tables[key], persistent=False)

    def _refresh_class_values(self) -> None:
        tables = class_value_tensors(self._objective, self.num_classes, self.class_counts, self.weight)
        self._store_class_values(tables)

    def _apply(self, fn: Any, recurse: bool = True) -> "PrototypeHead":
        """As every module is moved and cast; but a cast to half precision does not round the margins."""
        super()._apply(fn, recurse)
        self._refresh_class_values()
        return self

    def _load_from_state_dict(self, *args: Any, **options: Any) -> None:
        super()._load_from_state_dict(*args, **options)
        self._refresh_class_values()  # LDAM's follow from the class counts

    def _class_values(self) -> dict[tuple[int, str], Tensor]:
        return {key: getattr(self, name) for key, name in self._tables.items()}

    def forward(
        self,
        embeddings: Embeddings,
        labels: Tensor | MixedLabels | None = None,
        *,
        sample_weight: Tensor | None = None,
        reduction: Reduction = "mean",
        check: bool = False,
    ) -> Tensor:
        """The loss; without labels the logits. See :func:`tammes.losses.evaluate.loss` for the meaning."""
        if labels is None:
            return self.logits(embeddings)
        loss, self.terms = loss_of_batch(
            self.objective,
            embeddings,
            self.weight,
            labels,
            produce=self._producer(labels),
            class_values=self._class_values(),
            class_weight=self.class_weight,
            sample_weight=sample_weight,
            ignore_index=self.ignore_index,
            reduction=reduction,
            check=check,
        )
        return loss

    def _producer(self, labels: Tensor | MixedLabels) -> Producer:
        if self.sampler is None or not self.training:
            return self._statistics
        return self.sampler.producer(labels, self.ignore_index, self._statistics)

    def _statistics(self, embeddings: Embeddings, weight: Tensor, targets: Targets, plan: Plan) -> Statistics:
        """By blocks of classes; whole when asked for, and under `torch.compile`, which fuses by itself."""
        if self.block_size is None or torch.compiler.is_compiling():
            return dense(embeddings, weight, targets, plan)
        return streamed(
            embeddings,
            weight,
            targets,
            plan,
            block_size=self._block(len(embeddings)),
            buffer_bytes=BUFFER_BYTES if self.block_size == "auto" else LEAN_BUFFER_BYTES,
            fast_products=self.fast_products,
            workspace=self._workspace,
        )

    def _block(self, num_samples: int) -> int:
        return self.block_size if isinstance(self.block_size, int) else auto_block(num_samples)

    def logits(self, embeddings: Embeddings) -> Similarities:
        """s times the similarity of the first loss term (raw for CE, Focal, L-Softmax); no margin."""
        space, scale = logit_space(self.objective)
        return scale * self._similarities(embeddings, space)

    def cosines(self, embeddings: Embeddings) -> Similarities:
        """Cosines of embeddings and prototypes."""
        return self._similarities(embeddings, "cosine")

    def _similarities(self, embeddings: Embeddings, space: Any) -> Similarities:
        checks.check_embeddings(embeddings, self.in_features)
        plan = Plan(spaces=(space,), rests=(), hardest=(), sums=(), norms=False)
        dtype = working_dtype(embeddings, self.weight)
        with torch.autocast(embeddings.device.type, enabled=False):
            return similarities(embeddings.to(dtype), self.weight.to(dtype), plan)[space]

    @torch.no_grad()
    def predict(self, embeddings: Embeddings, top: int = 1) -> Int[Tensor, "..."]:
        """The class with the largest logit for each embedding, (n,); with `top` the first few, (n, top)."""
        checks.check_embeddings(embeddings, self.in_features)
        self._check_top(top)
        space, _ = logit_space(self.objective)
        _, best = top_classes(embeddings, self.weight, space, top, self._block(len(embeddings)))
        return best.squeeze(1) if top == 1 else best

    def _check_top(self, top: int) -> None:
        checks.at_least("top", top, 1)
        if top > self.num_classes:
            raise ValueError(f"top must be at most the {self.num_classes} classes there are, got {top}.")

    @torch.no_grad()
    def class_margin(self) -> Scalar:
        """Smallest angle between two prototypes, in radians."""
        return class_margin(self.weight)

    def param_groups(self, lr: float | None = None, weight_decay: float = 0.0) -> list[dict[str, Any]]:
        """The prototypes as an optimizer's parameter group: without weight decay unless asked."""
        group: dict[str, Any] = {"params": [self.weight], "weight_decay": weight_decay}
        return [group if lr is None else group | {"lr": lr}]

    def check(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether `optimizer` moves the prototypes; warns when it was forgotten to."""
        held = any(self.weight is p for group in optimizer.param_groups for p in group["params"])
        if self.weight.requires_grad and not held:
            warnings.warn(
                "The optimizer does not hold the head's prototypes, so they would never move. "
                "Add them: optimizer.add_param_group(head.param_groups(lr=...)[0]).",
                stacklevel=2,
            )
        return held

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.num_classes}, {str(self.objective)!r}"
