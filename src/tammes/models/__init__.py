"""Networks without their classifier: the paper's own, a small fast one, and any of timm by name.

>>> net = build("fastnet-half", in_channels=3, image_size=32)
>>> net.out_features, net.nonnegative
(128, False)
"""

from tammes.models.backbone import AroundNeck, Backbone, embed
from tammes.models.catalogue import MODELS, build

__all__ = ["MODELS", "AroundNeck", "Backbone", "build", "embed"]
