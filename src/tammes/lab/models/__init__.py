"""Backbones: the paper's own, face networks, a small fast one, and any timm model by name.

>>> from tammes.lab.models import build
>>> net = build("fastnet-half", in_channels=3, image_size=32)
>>> net.out_features, net.nonnegative
(128, False)
"""

from tammes._common.lazy import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
