"""A backbone with a head as a Hugging Face model, and parameter groups for its Trainer."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import ModelCard, ModelCardData, PyTorchModelHubMixin
from torch import Tensor, nn

import tammes
from tammes._common.checks import reading
from tammes.geometry.bounds import largest_class_margin
from tammes.heads import PrototypeHead
from tammes.losses._text import ObjectiveLike, as_objective

CARD = """\
---
{header}
---
# {title}

A network with a prototype head of [tammes]({home}): {num_classes} classes in {dimensions} dimensions.

| | |
|---|---|
| objective | `{objective}` |
| class margin | {margin:.2f} degrees, at most {largest:.2f} |
{metrics}
```
from tammes.lab.adapters import MarginClassifier

model = MarginClassifier.from_pretrained("{title}"{arguments})
model.predict(inputs)  # class names
```
"""
HOME = "https://pypi.org/project/tammes"


class MarginClassifier(nn.Module, PyTorchModelHubMixin):
    """A backbone with a `PrototypeHead`: embeddings, logits, loss and class names in one model.

    `save_pretrained` writes safetensors, the settings as JSON and a model card; `from_pretrained` reads them
    from a folder or from the hub. No code from the files is executed.

    Args:
        backbone: Module that maps inputs to embeddings (n, d), or the name of a timm model, which is built
            without pretrained weights. A module must be passed to `from_pretrained` again.
        classes: Class names.
        objective: The loss, or its text form.
        in_features: Embedding dimension d. Default: `backbone.num_features`, which timm models have.

    >>> model = MarginClassifier(nn.Linear(8, 4), ["cat", "dog"], "NormFace(s=8)", in_features=4)
    >>> sorted(model(torch.randn(3, 8), torch.tensor([0, 1, 1])))
    ['logits', 'loss']
    """

    def __init__(
        self,
        backbone: nn.Module | str | None = None,
        classes: Sequence[str] = (),
        objective: ObjectiveLike = "CE",
        *,
        in_features: int | None = None,
    ) -> None:
        super().__init__()
        if backbone is None:
            raise ValueError(
                "The backbone was a module when this model was saved: its files do not say how to build it. "
                "Pass it: MarginClassifier.from_pretrained(..., backbone=module)."
            )
        self.backbone_name = backbone if isinstance(backbone, str) else None
        self.backbone = _timm(backbone) if isinstance(backbone, str) else backbone
        width = in_features or getattr(self.backbone, "num_features", None)
        if width is None:
            raise ValueError("This backbone has no num_features. Pass in_features=, the embedding dimension.")
        self.classes = tuple(map(str, classes))
        self.head = PrototypeHead(int(width), len(self.classes), as_objective(objective))

    def embed(self, inputs: Tensor) -> Tensor:
        """Embeddings, (n, d)."""
        return self.backbone(inputs)

    def forward(self, inputs: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """Logits and, with labels, the loss, as the Hugging Face Trainer expects them."""
        embeddings = self.embed(inputs)
        logits = {"logits": self.head(embeddings)}
        return logits if labels is None else {"loss": self.head(embeddings, labels), **logits}

    @torch.no_grad()
    def predict(self, inputs: Tensor) -> list[str]:
        """The name of the most likely class of each input."""
        return [self.classes[label] for label in self.head.predict(self.embed(inputs)).tolist()]

    def settings(self) -> dict[str, Any]:
        """The settings that `from_pretrained` needs besides the weights."""
        known = {
            "classes": list(self.classes),
            "objective": str(self.head.objective),
            "in_features": self.head.in_features,
            "tammes": tammes.__version__,
        }
        return known | ({} if self.backbone_name is None else {"backbone": self.backbone_name})

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **options: Any) -> "MarginClassifier":
        """Load a model from a folder or from the hub. Options: the mixin's, and those of the class."""
        path = pretrained_model_name_or_path
        with reading(path, "Are its files complete?"):
            try:
                return super().from_pretrained(path, **options)
            except RuntimeError as error:  # from `load_state_dict`
                reason = " ".join(str(error).split())
                raise ValueError(f"{path} does not fit this model: {reason}") from error

    def save_pretrained(
        self,
        save_directory: str | Path,
        *,
        metrics: Mapping[str, float] | None = None,
        model_card_kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> str | None:
        """Save to a folder. `metrics` appear on the model card; see the mixin for `options`."""
        card = {"title": Path(save_directory).name, "metrics": metrics or {}} | dict(model_card_kwargs or {})
        options.setdefault("config", self.settings())
        return super().save_pretrained(save_directory, model_card_kwargs=card, **options)

    def generate_model_card(
        self, *, title: str = "model", metrics: Mapping[str, float] | None = None
    ) -> ModelCard:
        """The model card: objective, margins, measures, and how to load the model."""
        header = ModelCardData(library_name="tammes", tags=["margin-softmax", "pytorch_model_hub_mixin"])
        head = self.head
        text = CARD.format(
            header=header.to_yaml(),
            title=title,
            home=HOME,
            num_classes=head.num_classes,
            dimensions=head.in_features,
            objective=head.objective,
            margin=head.class_margin().rad2deg().item(),
            largest=largest_class_margin(head.num_classes, head.in_features).angle * 180 / torch.pi,
            metrics="".join(f"| {name} | {value:.4g} |\n" for name, value in (metrics or {}).items()),
            arguments="" if self.backbone_name else ", backbone=...",
        )
        return ModelCard(text)


def _timm(name: str) -> nn.Module:
    import timm

    return timm.create_model(name, pretrained=False, num_classes=0)


def optimizer_groups(
    model: nn.Module, *, weight_decay: float, lr: float | None = None
) -> list[dict[str, Any]]:
    """Parameter groups of a model with one or more heads, with and without weight decay.

    Prototypes, biases and normalization weights do not decay. The default optimizer of the Hugging Face
    Trainer would decay the prototypes; pass `optimizers=(AdamW(optimizer_groups(...)), None)` instead.
    """
    prototypes = {id(head.weight) for head in _heads(model)}
    decays, stays = [], []
    for parameter in model.parameters():
        if parameter.requires_grad:
            (stays if id(parameter) in prototypes or parameter.ndim < 2 else decays).append(parameter)
    groups = [{"params": decays, "weight_decay": weight_decay}, {"params": stays, "weight_decay": 0.0}]
    return [group if lr is None else group | {"lr": lr} for group in groups if group["params"]]


def _heads(model: nn.Module) -> Iterator[PrototypeHead]:
    return (module for module in model.modules() if isinstance(module, PrototypeHead))
