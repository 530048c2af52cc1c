"""What all networks here share: images in, embeddings out."""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn

from tammes.models.bnneck import BNNeck
from tammes.types import Embeddings

Images = Float[Tensor, "n c h w"]


class Backbone(nn.Module):
    r"""A network without its classifier; the prototypes live in a head.

    Args:
        width: number of features that `features` gives.
        nonnegative: whether these are never below zero, as after a ReLU.
        embedding: width of a linear layer behind the features; None for none.

    Attributes:
        neck: what the embeddings pass last; nothing, unless `add_neck` was called.
        out_features: d, the width of the embeddings.
        nonnegative: whether no entry of an embedding is ever below zero. Then no two embeddings are more
            than 90 degrees apart, and on balanced data the mean sample margin cannot exceed
            :math:`\sqrt{k/(k-1)}`, below the simplex's :math:`k/(k-1)` (docs/errata, 14). A linear
            layer behind the ReLU lifts that.
    """

    out_features: int
    nonnegative: bool

    def __init__(self, width: int, *, nonnegative: bool, embedding: int | None = None) -> None:
        super().__init__()
        self.embedding = nn.Identity() if embedding is None else nn.Linear(width, embedding)
        self.neck: nn.Module = nn.Identity()
        self.out_features = width if embedding is None else embedding
        self.nonnegative = nonnegative and embedding is None

    def features(self, images: Images) -> Embeddings:
        """What the embedding layer gets, or what comes out where there is none."""
        raise NotImplementedError

    def add_neck(self) -> None:
        """Put a BNNeck behind the embeddings."""
        self.neck, self.nonnegative = BNNeck(self.out_features), False

    def before_neck(self, images: Images) -> Embeddings:
        """The embeddings as they enter the neck."""
        return self.embedding(self.features(images))

    def forward(self, images: Images) -> Embeddings:
        return self.neck(self.before_neck(images))

    def calibrate(self, images: Images) -> None:
        """Set what is computed from normalised training images before the first step: nothing, by default."""


class AroundNeck(nn.Module):
    """The embeddings before and behind the neck of a backbone."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, images: Images) -> tuple[Embeddings, Embeddings]:
        before = self.backbone.before_neck(images)
        return before, self.backbone.neck(before)


def embed(backbone: Callable[[Images], Embeddings], images: Images, *, flip: bool) -> Embeddings:
    """The embeddings of the images, with `flip` their mean with those of their mirror images.

    That costs a second pass and usually gains accuracy at test, where left and right do not matter.
    """
    return (backbone(images) + backbone(images.flip(-1))) / 2 if flip else backbone(images)
