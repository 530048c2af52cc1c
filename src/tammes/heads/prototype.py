"""`PrototypeHead`: the last layer and the loss of a classifier, in one module."""

import math
import warnings
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, overload

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from tammes._common import checks, tensor_checks
from tammes._common.autograd import transforming
from tammes._common.types import Embeddings, Labels, Prototypes, Scalar, Similarities
from tammes.geometry.bounds import largest_class_margin
from tammes.geometry.margins import class_margin
from tammes.geometry.sphere import normalize
from tammes.heads._beside_weight import copy_beside_weight
from tammes.heads._centers import (
    class_similarities,
    dominant_centers,
    over_centers,
)
from tammes.heads._head_state import HeadState
from tammes.heads._initial_prototypes import packed_prototypes
from tammes.heads._optimizer_faults import group_of, optimizer_faults
from tammes.heads._running import RunningState
from tammes.heads._sampled import ClassSampler
from tammes.heads._scales import LearnedScales
from tammes.heads._stream.forward import top_classes
from tammes.heads._stream.streamed import BUFFER_BYTES, LEAN_BUFFER_BYTES, auto_block, streamed
from tammes.heads._stream.workspace import Workspace
from tammes.losses._engine.batch_loss import (
    Producer,
    Reduction,
    loss_of_batch,
    working_dtype,
)
from tammes.losses._engine.batch_values import WITHOUT_MEMORY, Memory
from tammes.losses._engine.dense_statistics import dense
from tammes.losses._engine.labels import IGNORE_INDEX, MixedLabels
from tammes.losses._engine.objective_plan import first_loss, logit_space, starting_scale
from tammes.losses._engine.plan import Plan, Targets
from tammes.losses._engine.statistics import Statistics
from tammes.losses._text import ObjectiveLike
from tammes.losses.advice import scale_warnings
from tammes.losses.objective import SampleTerm

Init = Literal["random", "packed"]

ADVICE_GIVEN: set[str] = set()
"""Scale warnings already shown in this process."""


class PrototypeHead(HeadState):
    """The prototypes of a classifier, one per class, together with the objective that trains them.

    Args:
        in_features: Embedding dimension d.
        num_classes: Number of classes k.
        objective: The loss that `head(embeddings, labels)` returns, or its text form, such as
            "CosFace(s=64, m=0.35)"; may be reassigned at any time.
        class_counts: Number of training samples per class, for LDAM.
        class_weight: Weight per class, like `weight` in `torch.nn.functional.cross_entropy`.
        ignore_index: Label of rows to ignore.
        init: "random" for random unit vectors, "packed" for unit vectors as far apart as possible.
        trainable: If False, the prototypes stay fixed.
        block_size: Number of classes per block of the streamed computation. "auto" also keeps up to 256 MiB
            of similarities at a time; an explicit size keeps at most 52 MiB. None computes the
            plain dense reference. Second derivatives (`create_graph=True`) always use as much memory as the
            dense reference.
        fast_products: Run the matrix products in autocast's dtype; sums stay in float32.
        centers: Number of prototypes per class (sub-centers). The one most similar to the sample represents
            the class, which suits noisy labels and classes with several modes. `weight` is then (k, centers,
            d). R_w is the squared norm of the mean of all prototypes, MHE the mean over all pairs of
            prototypes of different classes.
        sample_rate: Fraction of the classes outside the batch to train on, resampled at each step; classes
            in the batch are always included. The gradient of `weight` is then sparse: use `RowSGD` or
            `RowAdamW`. In `eval()` the loss covers all classes.

    >>> from tammes.losses import CosFace, SampleMargin
    >>> head = PrototypeHead(4, 3, CosFace(scale=8, margin=0.2) + 0.5 * SampleMargin())
    >>> head(torch.randn(5, 4), torch.tensor([0, 1, 2, 1, 0])).shape
    torch.Size([])
    >>> head(torch.randn(5, 4)).shape
    torch.Size([5, 3])
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        objective: ObjectiveLike,
        *,
        class_counts: Tensor | Sequence[float] | None = None,
        class_weight: Tensor | Sequence[float] | None = None,
        ignore_index: int = IGNORE_INDEX,
        init: Init = "random",
        trainable: bool = True,
        block_size: int | Literal["auto"] | None = "auto",
        fast_products: bool = False,
        centers: int = 1,
        sample_rate: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features = checks.at_least("in_features", in_features, 1)
        self.num_classes = checks.at_least("num_classes", num_classes, 2)
        self.ignore_index = ignore_index
        if isinstance(block_size, str):
            checks.one_of("block_size", block_size, ("auto",))
        elif block_size is not None:
            block_size = checks.at_least("block_size", block_size, 1)
        self.block_size: int | Literal["auto"] | None = block_size
        self.fast_products = fast_products
        self._workspace = Workspace()
        self.terms: dict[str, Tensor] = {}
        self.init: Init = init
        checks.one_of("init", init, ("random", "packed"))
        self.centers = checks.at_least("centers", centers, 1)
        if self.centers > 1 and init == "packed":
            raise ValueError(
                f'init="packed" places one prototype per class, got centers={centers}. Use "random".'
            )
        self._kept_from_meta: dict[str, Tensor] = {}
        first, last = self.class_range
        shape = (
            (last - first, in_features) if self.centers == 1 else (last - first, self.centers, in_features)
        )
        weight = torch.empty(shape, device=device, dtype=dtype)
        self.weight = nn.Parameter(weight, requires_grad=trainable)
        self.sampler: ClassSampler | None = None
        self.running: RunningState | None = None
        self.scales: LearnedScales | None = None
        self._register_class_counts(class_counts)
        self._register_class_weight(class_weight)
        self.reset_parameters()
        if sample_rate is not None:  # last, so that sampling does not change the initial prototypes
            self.sampler = ClassSampler(sample_rate, self.weight)
        self.objective = objective
        self._advise()

    @property
    def class_range(self) -> tuple[int, int]:
        """Half-open range (start, stop) of the classes whose prototypes this process holds."""
        return 0, self.num_classes

    @property
    def local_weight(self) -> Tensor:
        """The rows of `weight` in this process: all of them."""
        return self.weight

    def reset_parameters(self, init: Init | None = None) -> None:
        """Reinitialize prototypes (by `init`, or as at construction) and scales; not on the meta device."""
        if self.weight.is_meta:
            return
        with torch.no_grad():
            if (init or self.init) == "packed":
                self.weight.copy_(packed_prototypes(self.num_classes, self.in_features))
            else:
                for rows in self.weight.split(
                    8192
                ):  # in chunks: ten million classes leave no room for a copy
                    rows.copy_(normalize(torch.randn(rows.shape, device=rows.device)))
        self._reset_scales()

    def _reset_scales(self) -> None:
        if self.scales is not None:
            self.scales.reset(self.objective)

    def _advise(self) -> None:
        """Warn the constructor's caller, once per process, if the scale does not suit the classes."""
        gamma = 1 - math.cos(largest_class_margin(self.num_classes, self.in_features).angle)
        for line in scale_warnings(self.objective, self.num_classes, gamma):
            if line not in ADVICE_GIVEN:
                ADVICE_GIVEN.add(line)
                warnings.warn(line, stacklevel=3)

    if TYPE_CHECKING:  # `nn.Module.__call__` takes and returns anything

        @overload
        def __call__(self, embeddings: Tensor) -> Similarities: ...
        @overload
        def __call__(
            self,
            embeddings: Tensor,
            labels: Tensor | MixedLabels | None,
            *,
            sample_weight: Tensor | None = None,
            reduction: Reduction = "mean",
            check: bool = False,
        ) -> Tensor: ...
        def __call__(self, *args: Any, **options: Any) -> Tensor: ...

    def forward(
        self,
        embeddings: Embeddings,
        labels: Tensor | MixedLabels | None = None,
        *,
        sample_weight: Tensor | None = None,
        reduction: Reduction = "mean",
        check: bool = False,
    ) -> Tensor:
        """The loss, or the logits if `labels` is None. See `tammes.losses.Objective` for the arguments.

        NaNs propagate, because looking for them would synchronize with the device. `check=True` does so and
        reports their origin. Checking `torch.isfinite(loss)` every few hundred steps is cheap.
        """
        if labels is None:
            return self.logits(embeddings)
        goal = self._current_goal()
        loss, self.terms = loss_of_batch(
            goal.objective,
            embeddings,
            self.weight,
            labels,
            produce=self._producer(labels),
            class_values=goal.class_values,
            class_weight=self.class_weight,
            sample_weight=sample_weight,
            ignore_index=self.ignore_index,
            reduction=reduction,
            check=check,
            scales=self._scales(working_dtype(embeddings, self.weight)),
            memory=self._memory(),
        )
        return loss

    def _memory(self) -> Memory:
        """The storage of the objective's running statistics for this forward pass."""
        if self.running is None:
            return WITHOUT_MEMORY
        return Memory(partial(self.running.advance, weight=self.weight), self.running.keep)

    def _scales(self, dtype: torch.dtype) -> dict[int, Scalar]:
        """The learned scales in `dtype`, by the place of their term in the objective."""
        return {} if self.scales is None else self.scales.by_place(self.objective, dtype)

    def _producer(self, labels: Tensor | MixedLabels) -> Producer:
        if self.sampler is None or not self.training:
            return self._statistics
        return self.sampler.producer(labels, self.ignore_index, self._statistics)

    def _statistics(self, embeddings: Embeddings, weight: Tensor, targets: Targets, plan: Plan) -> Statistics:
        """Streamed by blocks of classes; dense for `block_size=None`, `torch.compile` and `torch.func`."""
        if weight.ndim == 3:
            return over_centers(embeddings, weight, targets, plan, self._statistics)
        if self.block_size is None or torch.compiler.is_compiling() or transforming():
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
        """Logits without a margin: s times the first loss's similarity (raw for CE, Focal, L-Softmax)."""
        return self.logit_scale * self._similarities(embeddings, logit_space(self.objective))

    @property
    def logit_scale(self) -> float | Scalar:
        """The scale of the logits: a number, or a tensor if it is learned or adaptive."""
        term = first_loss(self.objective)
        place = [other for _, other in self.objective.weighted_terms].index(term)
        if term.need.scale == "adaptive":
            assert isinstance(term, SampleTerm)
            states = {} if self.running is None else self.running.states(self.objective)
            return term.adaptive_scale(states.get(place, {}), self.num_classes)
        learned = self._scales(working_dtype(self.weight))
        return learned.get(place, 1.0 if term.need.scale is None else starting_scale(term.need.scale))

    def cosines(self, embeddings: Embeddings) -> Similarities:
        """Cosine similarities of embeddings and prototypes, (n, k)."""
        return self._similarities(embeddings, "cosine")

    def _similarities(self, embeddings: Embeddings, space: Any) -> Similarities:
        tensor_checks.check_embeddings(embeddings, self.in_features)
        plan = Plan(spaces=(space,), rests=(), hardest=(), sums=(), norms=False)
        dtype = working_dtype(embeddings, self.weight)
        with torch.autocast(embeddings.device.type, enabled=False):
            return class_similarities(embeddings.to(dtype), self.weight.to(dtype), plan)[space]

    @torch.no_grad()
    def predict(self, embeddings: Embeddings, top: int = 1) -> Int[Tensor, "..."]:
        """The most likely class of each embedding, (n,); with `top` > 1, the `top` most likely, (n, top)."""
        tensor_checks.check_embeddings(embeddings, self.in_features)
        self._check_top(top)
        space = logit_space(self.objective)
        _, best = top_classes(embeddings, self.weight, space, top, self._block(len(embeddings)))
        return best.squeeze(1) if top == 1 else best

    def _check_top(self, top: int) -> None:
        checks.at_least("top", top, 1)
        if top > self.num_classes:
            raise ValueError(f"top must be at most the number of classes, {self.num_classes}, got {top}.")

    @torch.no_grad()
    def class_margin(self) -> Scalar:
        """Smallest angle between prototypes of two classes, in radians."""
        return class_margin(self.weight)

    @torch.no_grad()
    def drop_minor_centers(
        self, embeddings: Embeddings, labels: Labels, *, threshold: float = math.radians(75)
    ) -> tuple["PrototypeHead", Bool[Tensor, " n"]]:
        """Keep the dominant prototype of each class, the one that most of its samples are closest to.

        Returns a new head with one prototype per class, and which samples to train it on: those whose angle
        to the dominant prototype is at most `threshold`, in radians. The others are likely mislabeled. Pass
        the embeddings and labels of the training set. A class without samples keeps its first prototype.
        """
        self._check_dropping(embeddings, labels, threshold)
        weight, kept = dominant_centers(self.weight, embeddings, labels, self.ignore_index, threshold)
        return self._with_one_center(weight), kept

    def _check_dropping(self, embeddings: Tensor, labels: Tensor, threshold: float) -> None:
        checks.within("threshold", threshold, 0.0, math.pi, "It is in radians: math.radians(75) is 1.31.")
        if self.centers == 1:
            raise ValueError(
                "drop_minor_centers needs centers > 1; there is one prototype per class already."
            )
        tensor_checks.check_embeddings(embeddings, self.in_features)
        tensor_checks.check_labels(labels, self.num_classes, self.ignore_index, check=True)
        tensor_checks.check_per_sample("labels", labels, len(embeddings))

    def _with_one_center(self, weight: Prototypes) -> "PrototypeHead":
        """A head like this one with the prototypes `weight`, one for each class in this process."""
        head = self._new_head(
            in_features=self.in_features,
            num_classes=self.num_classes,
            objective=self.objective,
            class_counts=self.class_counts,
            class_weight=self.class_weight,
            ignore_index=self.ignore_index,
            trainable=self.weight.requires_grad,
            block_size=self.block_size,
            fast_products=self.fast_products,
            sample_rate=None if self.sampler is None else self.sampler.rate,
            device=self.weight.device,
            dtype=self.weight.dtype,
        )
        head.local_weight.copy_(weight)
        copy_beside_weight(self, head)
        return head

    def _new_head(self, **options: Any) -> "PrototypeHead":
        return PrototypeHead(**options)

    def param_groups(self, lr: float | None = None, weight_decay: float = 0.0) -> list[dict[str, Any]]:
        """Parameter groups for an optimizer: the prototypes, by default without weight decay.

        Learned scales are a second group, never with weight decay.
        """
        groups: list[dict[str, Any]] = [{"params": [self.weight], "weight_decay": weight_decay}]
        if self.scales is not None:
            groups.append({"params": list(self.scales.values()), "weight_decay": 0.0})
        return groups if lr is None else [group | {"lr": lr} for group in groups]

    def check(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether `optimizer` can train the prototypes and learned scales; warns if it cannot.

        It must hold them all. For a head with `sample_rate` it must also accept sparse gradients and
        update only the rows they contain.
        """
        faults = optimizer_faults(self.weight, self.scales, optimizer, self.sampler is not None)
        for fault in faults:
            warnings.warn(fault, stacklevel=2)
        return group_of(self.weight, optimizer) is not None and not faults

    def extra_repr(self) -> str:
        centers = f", centers={self.centers}" if self.centers > 1 else ""
        return f"{self.in_features}, {self.num_classes}, {str(self.objective)!r}{centers}"
