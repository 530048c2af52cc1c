"""A backbone with a head as a Hugging Face model: saved, described, loaded; and groups for the Trainer."""

import json

import pytest
import torch
from torch import nn

from tammes import PrototypeHead
from tammes.losses import ArcFace

pytest.importorskip("huggingface_hub")

from tammes.lab.adapters import MarginClassifier, optimizer_groups

CLASSES = ["cat", "dog", "owl"]


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 4))


@pytest.fixture
def model() -> MarginClassifier:
    torch.manual_seed(0)
    return MarginClassifier(network(), CLASSES, ArcFace(scale=8, margin=0.2), in_features=4)


def test_a_model_comes_back_as_it_was_saved(model, tmp_path):
    model.save_pretrained(tmp_path / "model", metrics={"accuracy": 0.9712})
    again = MarginClassifier.from_pretrained(tmp_path / "model", backbone=network())
    x = torch.randn(5, 6)
    assert torch.equal(again(x)["logits"], model(x)["logits"])
    assert again.classes == ("cat", "dog", "owl")
    assert again.head.objective == model.head.objective
    assert again.predict(x) == [CLASSES[i] for i in model.head.predict(model.backbone(x))]
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
    ]


def test_the_card_has_objective_margins_and_measures(model, tmp_path):
    model.save_pretrained(tmp_path / "owls", metrics={"accuracy": 0.9712})
    card = (tmp_path / "owls" / "README.md").read_text()
    assert "library_name: tammes" in card
    assert "ArcFace(s=8, m=0.2)" in card
    assert f"{model.head.class_margin().rad2deg():.2f} degrees, at most 120.00" in card
    assert "| accuracy | 0.9712 |" in card
    assert 'MarginClassifier.from_pretrained("owls", backbone=...)' in card


def test_a_timm_backbone_needs_no_arguments_to_load(tmp_path):
    pytest.importorskip("timm")
    model = MarginClassifier("test_resnet", CLASSES, "NormFace(s=8)")
    model.eval().save_pretrained(tmp_path / "model")
    assert json.loads((tmp_path / "model" / "config.json").read_text())["backbone"] == "test_resnet"
    again = MarginClassifier.from_pretrained(tmp_path / "model")
    image = torch.randn(2, 3, 32, 32)
    assert torch.equal(again(image)["logits"], model(image)["logits"])


def test_without_its_backbone_a_model_says_what_is_missing(model, tmp_path):
    model.save_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match="backbone=module"):
        MarginClassifier.from_pretrained(tmp_path / "model")


def test_a_backbone_of_unknown_width_is_asked_for(model):
    with pytest.raises(ValueError, match="Pass in_features="):
        MarginClassifier(network(), CLASSES, "CE")


def test_weights_that_do_not_fit_are_refused(model, tmp_path):
    model.save_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match=r"model does not fit this model: .*size mismatch"):
        MarginClassifier.from_pretrained(tmp_path / "model", backbone=network(), classes=["cat", "dog"])


def decayed(groups, parameter) -> float:
    (found,) = [g["weight_decay"] for g in groups if any(parameter is p for p in g["params"])]
    return found


def test_prototypes_biases_and_norms_do_not_decay(model):
    groups = optimizer_groups(model, weight_decay=0.1)
    assert decayed(groups, model.backbone[0].weight) == 0.1
    for parameter in (model.head.weight, model.backbone[0].bias, model.backbone[2].weight):
        assert decayed(groups, parameter) == 0.0
    assert sum(len(g["params"]) for g in groups) == len(list(model.parameters()))
    torch.optim.AdamW(groups, lr=0.1)


def test_heads_anywhere_and_frozen_parameters():
    model = nn.ModuleDict(
        {"a": PrototypeHead(4, 3, "CE"), "b": nn.Linear(4, 4), "c": PrototypeHead(4, 2, "CE")}
    )
    model["b"].requires_grad_(False)
    (group,) = optimizer_groups(model, weight_decay=0.1, lr=0.5)
    assert len(group["params"]) == 2
    assert (group["weight_decay"], group["lr"]) == (0.0, 0.5)


def test_the_trainer_by_itself_would_decay_the_prototypes(model, tmp_path):
    """The reason for `optimizer_groups`; if this fails, the Trainer has learned better."""
    transformers = pytest.importorskip("transformers")
    settings = transformers.TrainingArguments(str(tmp_path), weight_decay=0.1, use_cpu=True, report_to="none")
    trainer = transformers.Trainer(model, settings)
    trainer.create_optimizer()
    assert decayed(trainer.optimizer.param_groups, model.head.weight) == 0.1
    groups = optimizer_groups(model, weight_decay=0.1)
    mended = transformers.Trainer(model, settings, optimizers=(torch.optim.AdamW(groups, lr=1e-3), None))
    mended.create_optimizer()
    assert decayed(mended.optimizer.param_groups, model.head.weight) == 0.0
