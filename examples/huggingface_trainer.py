"""A prototype head with the Hugging Face Trainer.

The Trainer expects a model that returns loss and logits; the head computes both. Prototypes should not be
decayed, so the model lists the parameters that should.

Run: pip install transformers accelerate && python examples/huggingface_trainer.py
"""

import tempfile

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import EvalPrediction, Trainer, TrainingArguments

from tammes import PrototypeHead
from tammes.losses import ArcFace


class Model(nn.Module):
    """A small network for embeddings, prototypes for classes. Any encoder can replace the network."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32))
        self.head = PrototypeHead(32, 10, ArcFace(scale=16, margin=0.2))

    def forward(self, pixels: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        embeddings = self.encoder(pixels)
        outputs = {"logits": self.head(embeddings)}
        return outputs if labels is None else {"loss": self.head(embeddings, labels), **outputs}


class Digits(Dataset):
    """Rows of scikit-learn's digits, in the format of the Trainer."""

    def __init__(self, rows: slice) -> None:
        images, labels = load_digits(return_X_y=True)
        self.images, self.labels = torch.tensor(images[rows]).float() / 16, labels[rows]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> dict[str, Tensor | int]:
        return {"pixels": self.images[i], "labels": int(self.labels[i])}


def accuracy(prediction: EvalPrediction) -> dict[str, float]:
    """Fraction of samples whose largest logit is that of their class."""
    return {"accuracy": float((np.argmax(prediction.predictions, 1) == prediction.label_ids).mean())}


def main(epochs: int = 8) -> float:
    """Train on four fifths of the digits and print the accuracy on the others."""
    torch.manual_seed(0)
    model = Model()
    groups = [{"params": model.encoder.parameters(), "weight_decay": 0.01}, *model.head.param_groups()]
    optimizer = torch.optim.AdamW(groups, lr=0.003)
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            folder,
            num_train_epochs=epochs,
            per_device_train_batch_size=64,
            per_device_eval_batch_size=512,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            label_names=["labels"],
        )
        trainer = Trainer(
            model,
            settings,
            train_dataset=Digits(slice(0, 1438)),
            eval_dataset=Digits(slice(1438, None)),
            compute_metrics=accuracy,
            optimizers=(optimizer, None),
        )
        trainer.train()
        found = trainer.evaluate()
    margin = model.head.class_margin().rad2deg()
    print(f"accuracy {found['eval_accuracy']:.3f}, class margin {margin:.1f} degrees")
    return found["eval_accuracy"]


if __name__ == "__main__":
    main()
