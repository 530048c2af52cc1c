"""Any timm model with a prototype head, in a plain PyTorch loop.

Two changes to a usual script: the model ends in embeddings (`num_classes=0`), and the head holds both the
last layer and the loss.

Run: python examples/timm_model.py
"""

import timm
import torch
from sklearn.datasets import load_digits
from torch.nn.functional import interpolate

from tammes import PrototypeHead, class_margin
from tammes.losses import CosFace, SampleMargin


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """1,797 handwritten digits as 32 x 32 images."""
    images, labels = load_digits(return_X_y=True)
    small = torch.tensor(images).float().view(-1, 1, 8, 8) / 16
    return interpolate(small, scale_factor=4), torch.tensor(labels)


def main(model: str = "test_resnet", epochs: int = 4) -> float:
    """Train on four fifths of the digits and print the accuracy on the others."""
    torch.manual_seed(0)
    images, labels = digits()
    split = len(labels) * 4 // 5

    backbone = timm.create_model(
        model, num_classes=0, in_chans=1
    )  # no classifier: the model returns embeddings
    width = backbone(images[:2]).shape[1]
    head = PrototypeHead(width, 10, CosFace(scale=16, margin=0.2) + 0.5 * SampleMargin())

    # The prototypes are parameters too, without weight decay; `head.check` warns when they are forgotten.
    groups = [{"params": backbone.parameters()}, *head.param_groups(weight_decay=0.0)]
    optimizer = torch.optim.AdamW(groups, lr=0.003, weight_decay=0.05)
    assert head.check(optimizer)

    for epoch in range(epochs):
        backbone.train()
        for rows in torch.randperm(split).split(64):
            loss = head(backbone(images[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1}", {name: round(value.item(), 3) for name, value in head.terms.items()})

    backbone.eval()
    with torch.no_grad():
        predicted = head.predict(backbone(images[split:]))  # or head(embeddings), without labels: logits
    accuracy = (predicted == labels[split:]).double().mean().item()
    print(f"accuracy {accuracy:.3f}, class margin {class_margin(head.weight).rad2deg():.1f} degrees")
    return accuracy


if __name__ == "__main__":
    main()
