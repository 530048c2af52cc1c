"""The backward of the streamed head: gradients of statistics to gradients of rows and prototypes."""

import torch
from torch import Tensor

from tammes.heads.blocks import Block, Kept, Options, blocks, in_space, increase, multiply, overwrite
from tammes.losses.scores import Space


class Backward:
    """One pass over the classes that turns gradients of statistics into gradients of rows and weight."""

    g_rest: dict[tuple[Space, float], Tensor | None]
    g_sums: dict[Space, Tensor | None]
    g_norms: Tensor | None
    rest: dict[tuple[Space, float], Tensor]
    index: dict[Space, Tensor]

    def __init__(
        self,
        rows: Tensor,
        row_norms: Tensor,
        weight: Tensor,
        targets: Tensor,
        inverse_norms: Tensor,
        options: Options,
        kept: list[Kept],
    ) -> None:
        self.rows, self.row_norms, self.weight, self.targets = rows, row_norms, weight, targets
        self.inverse_norms, self.options, self.kept = inverse_norms, options, kept
        self.g_target: dict[Space, Tensor | None] = {}
        self.g_hardest: dict[Space, Tensor | None] = {}
        self.grad_rows: Tensor | None = None
        self.grad_row_norms: Tensor | None = None
        self.grad_weight: Tensor | None = None

    def run(self, *, need_rows: bool, need_weight: bool) -> None:
        n, size = self.rows.shape[0], min(self.options.block_size, self.weight.shape[0])
        room = self.rows.new_empty(1 if self.options.in_place else 4, n, size)
        self.grad_rows = torch.zeros_like(self.rows) if need_rows else None
        self.grad_weight = torch.empty_like(self.weight) if need_weight else None
        self.grad_row_norms = torch.zeros_like(self.row_norms) if self._base != "cosine" else None
        for place, block in enumerate(blocks(self.weight, self.inverse_norms, self.rows.dtype, size)):
            product, *scratch = block.views(room)
            kept = self.kept[place] if place < len(self.kept) else None
            if kept is not None:
                product = kept.matrix
            else:
                multiply(self.rows, block.part.T, product, self.options.fast_products)
            if self.options.in_place:
                of_product, radial = self._in_place(product, kept, block), None
            else:
                of_product, radial = self._of_product(product, scratch, block)
            if of_product is not None and self.grad_rows is not None:
                self._add_to_rows(of_product, block)
            if self.grad_weight is not None:
                self._fill_weight(of_product, radial, block)

    @property
    def _base(self) -> Space:
        return self.options.plan.product_space

    def _in_place(self, product: Tensor, kept: Kept | None, block: Block) -> Tensor | None:
        """The gradient of the only similarity, the cosine, written over the block itself."""
        if not self._asked("cosine"):
            return None
        if kept is not None and kept.shift is not None:
            self._rescale_exponentials(kept.matrix, kept.shift)
        else:
            similarity = product if kept is not None else product.mul_(block.inverse)
            self._softmax_weights("cosine", similarity, out=product)
        return self._add_targets("cosine", product, block).mul_(block.inverse)

    def _rescale_exponentials(self, exponentials: Tensor, shift: Tensor) -> None:
        """The forward's exponentials as softmax weights times their upstream gradient, in place."""
        ((key, upstream),) = self.g_rest.items()
        if upstream is None:
            exponentials.zero_()
            return
        rest = self.rest[key]
        factor = torch.where(rest == -torch.inf, 0.0, torch.exp(shift - rest))
        exponentials.mul_((key[1] * upstream * factor)[:, None])

    def _of_product(
        self, product: Tensor, scratch: list[Tensor], block: Block
    ) -> tuple[Tensor | None, Tensor | None]:
        """Gradient of the block's product, and per class the part that the prototype's norm answers for.

        The latter, sum_i G_ij c_ij, is None when `_fill_weight` can read it off the gradient itself.
        """
        matrix, first, second = scratch
        gradient, radial = None, None
        for space in filter(self._asked, self.options.plan.spaces):
            similarity = in_space(product, space, self._base, block, self.row_norms, out=matrix)
            part = first if gradient is None else second
            self._softmax_weights(space, similarity, out=part)
            self._add_targets(space, part, block)
            if space == "cosine" and self._base != "cosine":
                assert self.grad_row_norms is not None
                self.grad_row_norms -= (part * similarity).sum(1) / self.row_norms
            if space != "raw" and self._base == "raw":
                inner = (part * similarity).sum(0)
                radial = inner if radial is None else radial + inner
            part = in_space(part, space, self._base, block, self.row_norms, out=part)
            gradient = part if gradient is None else gradient.add_(part)
        return gradient, radial

    def _asked(self, space: Space) -> bool:
        """Whether any gradient reaches `space` at all."""
        rests = (g for (other, _), g in self.g_rest.items() if other == space)
        return any(g is not None for g in (self.g_target[space], self.g_hardest[space], *rests))

    def _add_targets(self, space: Space, out: Tensor, block: Block) -> Tensor:
        """Softmax weights to the whole gradient of a space: targets and rivals by scatter."""
        columns, inside = block.columns(self.targets)
        overwrite(out, columns, inside, 0.0)
        g_target, g_hardest = self.g_target[space], self.g_hardest[space]
        if g_target is not None:
            increase(out, columns, inside, g_target)
        if g_hardest is not None:
            columns, inside = block.columns(self.index[space][:, None])
            increase(out, columns, inside, g_hardest[:, None])
        return out

    def _softmax_weights(self, space: Space, similarity: Tensor, out: Tensor) -> None:
        r"""Into `out`, which may be `similarity`: :math:`g_i s e^{s c_{ij} - rest_i}`, summed over scales."""
        scales = [key[1] for key, g in self.g_rest.items() if key[0] == space and g is not None]
        if not scales:
            out.zero_()
            return
        parts = [torch.empty_like(out) for _ in scales[1:]] + [out]
        for scale, part in zip(scales, parts, strict=True):
            upstream = self.g_rest[space, scale]
            assert upstream is not None
            torch.add(-self.rest[space, scale][:, None], similarity, alpha=scale, out=part)
            part.exp_().mul_((scale * upstream)[:, None])
        for part in parts[:-1]:
            out.add_(part)

    def _add_to_rows(self, of_product: Tensor, block: Block) -> None:
        assert self.grad_rows is not None
        if self.options.fast_products:
            self.grad_rows += multiply(of_product, block.part, torch.empty_like(self.grad_rows), fast=True)
        else:
            self.grad_rows.addmm_(of_product, block.part)

    def _fill_weight(self, of_product: Tensor | None, radial: Tensor | None, block: Block) -> None:
        """The block's rows of the weight gradient: tangential for what is normalised, whole for the rest."""
        assert self.grad_weight is not None
        rows = self.grad_weight[block.start : block.stop]
        exact = rows if rows.dtype == block.part.dtype else torch.empty_like(block.part)
        if of_product is None:
            exact.zero_()
        else:
            multiply(of_product.T, self.rows, exact, self.options.fast_products)
        g_unit, g_raw = self.g_sums.get("cosine"), self.g_sums.get("raw")
        if g_unit is not None:
            exact.addr_(block.inverse, g_unit)
            if radial is not None:
                radial = radial + block.inverse * (block.part @ g_unit)
        if self._base != "raw":
            radial = torch.linalg.vecdot(exact, block.part)
        elif g_unit is not None and radial is None:
            radial = block.inverse * (block.part @ g_unit)
        if radial is not None:
            exact.addcmul_(block.part, (radial * block.inverse**2)[:, None], value=-1)
        if g_raw is not None:
            exact.add_(g_raw)
        if self.g_norms is not None:
            self._add_norms(exact, block)
        if exact is not rows:
            rows.copy_(exact)

    def _add_norms(self, exact: Tensor, block: Block) -> None:
        """d|w_y| / dw_y is the unit prototype."""
        assert self.g_norms is not None
        columns, inside = block.columns(self.targets)
        per_class = exact.new_zeros(exact.shape[0])
        per_class.index_add_(0, columns.flatten(), torch.where(inside, self.g_norms, 0.0).flatten())
        exact.addcmul_(block.part, (per_class * block.inverse)[:, None])
