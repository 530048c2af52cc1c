"""A prototype head in a LightningModule.

The head is a submodule, so Lightning moves, saves and optimizes it with the rest. On several devices, the
loss of a `PrototypeHead` is local, like any loss under DDP.

Run: pip install lightning && python examples/lightning_module.py
"""

import lightning
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tammes import PrototypeHead, parse


class Classifier(lightning.LightningModule):
    """A small network for embeddings, prototypes for classes."""

    def __init__(self, objective: str = "NormFace(s=16) + 0.5*R_sm", lr: float = 0.003) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.lr = lr
        self.backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32))
        self.head = PrototypeHead(32, 10, parse(objective))

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        images, labels = batch
        loss = self.head(self.backbone(images), labels)
        self.log_dict(self.head.terms)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], _: int) -> None:
        images, labels = batch
        right = self.head.predict(self.backbone(images)) == labels
        self.log("accuracy", right.float().mean(), prog_bar=True)

    def on_validation_epoch_end(self) -> None:
        self.log("class_margin_deg", self.head.class_margin().rad2deg(), prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        groups = [{"params": self.backbone.parameters()}, *self.head.param_groups()]
        return torch.optim.AdamW(groups, lr=self.lr)


def main(epochs: int = 8) -> float:
    """Train on four fifths of scikit-learn's digits and print the accuracy on the others."""
    lightning.seed_everything(0, verbose=False)
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images).float() / 16, torch.tensor(labels))
    split = len(data) * 4 // 5
    train = DataLoader(torch.utils.data.Subset(data, range(split)), batch_size=64, shuffle=True)
    test = DataLoader(torch.utils.data.Subset(data, range(split, len(data))), batch_size=len(data))
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    trainer.fit(Classifier(), train, test)
    print({name: round(value.item(), 3) for name, value in trainer.callback_metrics.items()})
    return trainer.callback_metrics["accuracy"].item()


if __name__ == "__main__":
    main()
