"""What a user of tammes writes, for mypy and pyright to read; `test_type_checkers.py` runs them."""

from typing import assert_type

import torch
from torch import Tensor, nn

import tammes
from tammes import (
    ArcFace,
    CosFace,
    NormFace,
    Objective,
    PrototypeHead,
    SampleMargin,
    ShardedPrototypeHead,
    ZeroCentroid,
    free_features,
    parse,
)


def objectives() -> list[Objective]:
    short = CosFace(s=64, m=0.35)
    long = CosFace(scale=64, margin=0.35, label_smoothing=0.1)
    per_class = ArcFace(s=64, m=[0.3, 0.5])
    mixed = long + 0.5 * SampleMargin() - 100 * tammes.R_w(normalize=False) / 2
    assert_type(mixed, Objective)
    assert_type(short, CosFace)
    assert_type(short.scale, float | tammes.Learnable)
    return [short, long, per_class, mixed, parse("CE"), tammes.CE(), tammes.LMSoftmax(s=16, reduction="lse")]


def head_of(parts: list[Objective]) -> PrototypeHead:
    head = PrototypeHead(512, 1000, "ArcFace(s=64, m=0.5)", init="packed")
    head.objective = "CosFace(s=64, m=0.35)"
    head.objective = sum(parts)
    head.objective = sum([NormFace(s=5), 0.5 * SampleMargin(), ZeroCentroid()])
    return head


def sharded_head(weights: list[float]) -> ShardedPrototypeHead:
    return ShardedPrototypeHead(512, 1000, "CE", class_weight=weights, block_size=256, device="cuda")


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Linear(32, 512)
        self.head = head_of(objectives())

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        embeddings = self.backbone(images)
        assert_type(self.head(embeddings), Tensor)
        assert_type(self.head(embeddings, labels, reduction="none"), Tensor)
        values: dict[str, Tensor] = self.head.terms
        assert_type(values["CosFace"], Tensor)
        return self.head(embeddings, labels, sample_weight=torch.ones(len(labels)))


def measure(z: Tensor, w: Tensor, y: Tensor) -> float:
    loss = NormFace(s=5)(z, w, y, class_weight=torch.ones(10), reduction="none")
    assert_type(loss, Tensor)
    return float(loss.sum()) + free_features("NormFace(s=5)", [500] * 10, 64).class_margin
