"""Speaker verification: a projection for WeSpeaker, a criterion for SpeechBrain, and an experiment.

AudioMNIST (github.com/soerenab/AudioMNIST, MIT): 60 people say the digits. Each of five splits trains on 48
of them and compares all pairs of recordings of the other 12; the metric is the equal error rate. The three
losses share network, data order and settings; scale and margin are the usual ones for speakers (s = 30, m =
0.2), chosen before the first run. Features are log-mel energies of 10 recordings of each digit, minus their
mean over time, which removes most of the effect of the microphone. These are single spoken words, so compare
the losses with each other, not the error rates with those on VoxCeleb.

The last part keeps a head when the speakers change: 8 of 48 leave, 12 join.

Run: git clone https://github.com/soerenab/AudioMNIST && python examples/speakers.py AudioMNIST/data
"""

import argparse
import dataclasses
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.io import wavfile
from scipy.signal import resample_poly
from torch import Tensor, nn

from tammes import PrototypeHead, load_head, parse, save_head
from tammes.lab.recipes.claims import interval
from tammes.lab.record_stamp import commit, stamp, write_record
from tammes.losses import Objective, SampleTerm, Scores
from tammes.metrics import equal_error_rate, roc

RATE, WINDOW, HOP, MELS, FRAMES = 16_000, 400, 160, 40, 64
DIMENSIONS, EPOCHS, BATCH, SPLITS, HELD_OUT = 64, 10, 64, 5, 12
OBJECTIVES = {"softmax": "CE", "AAM-Softmax": "ArcFace(s=30, m=0.2)", "LM-Softmax": "LMSoftmax(s=30)"}


class Projection(nn.Module):
    """A projection for WeSpeaker's executor: returns logits and loss, and lets it change the margin."""

    def __init__(self, embed_dim: int, num_class: int, objective: str | Objective) -> None:
        super().__init__()
        self.head = PrototypeHead(embed_dim, num_class, objective)

    @property
    def margin(self) -> float:
        """The current margin, which WeSpeaker logs."""
        return self.head.objective.margin

    def update(self, margin: float) -> None:
        """Called by WeSpeaker's margin scheduler at every step."""
        self.head.objective = dataclasses.replace(self.head.objective, margin=margin)

    def forward(self, embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return self.head(embeddings), self.head(embeddings, labels)


class Criterion(nn.Module):
    """Replaces SpeechBrain's LogSoftmaxWrapper(AdditiveAngularMargin(...)).

    SpeechBrain's classifier returns cosines of shape (n, 1, k); targets have the shape (n, 1).
    """

    def __init__(self, term: SampleTerm) -> None:
        super().__init__()
        self.term = term

    def forward(self, cosines: Tensor, targets: Tensor, length: Tensor | None = None) -> Tensor:
        scores = Scores.of(cosines.squeeze(1), targets.squeeze(1), scale=self.term.need.scale)
        return self.term.per_sample(scores).mean()


class Recordings(NamedTuple):
    """Log-mel energies (n, mels, frames), and the speaker of each."""

    features: Tensor
    speakers: np.ndarray


def mel_filters() -> Tensor:
    """Triangular filters, equally wide in mel, (mels, window // 2 + 1)."""
    edges = np.linspace(0, 2595 * np.log10(1 + RATE / 2 / 700), MELS + 2)
    hertz = 700 * (10 ** (edges / 2595) - 1)
    bins = np.linspace(0, RATE / 2, WINDOW // 2 + 1)
    up = (bins - hertz[:-2, None]) / (hertz[1:-1] - hertz[:-2])[:, None]
    down = (hertz[2:, None] - bins) / (hertz[2:] - hertz[1:-1])[:, None]
    return torch.from_numpy(np.maximum(0, np.minimum(up, down))).float()


def log_mel(path: Path, filters: Tensor) -> Tensor:
    """The first FRAMES frames of a recording, repeated if it is shorter, minus their mean over time."""
    rate, samples = wavfile.read(path)
    sound = resample_poly(samples.astype(np.float32) / 32768, RATE, rate)
    wave = torch.from_numpy(np.ascontiguousarray(sound, np.float32))
    power = (
        torch.stft(wave, WINDOW, HOP, window=torch.hann_window(WINDOW), return_complex=True).abs().square()
    )
    mel = (filters @ power).clamp(min=1e-8).log()
    mel = mel.repeat(1, -(-FRAMES // mel.shape[1]))[:, :FRAMES]
    return mel - mel.mean(1, keepdim=True)


def load(root: Path, cache: Path) -> Recordings:
    """Load all recordings ROOT/SPEAKER/DIGIT_SPEAKER_NUMBER.wav with NUMBER below 10."""
    if not cache.is_file():
        files = sorted(f for f in root.glob("*/*.wav") if int(f.stem.split("_")[2]) < 10)
        if not files:
            raise SystemExit(f"{root} has no recordings SPEAKER/DIGIT_SPEAKER_NUMBER.wav.")
        filters = mel_filters()
        features = torch.stack([log_mel(file, filters) for file in files]).half()
        cache.parent.mkdir(parents=True, exist_ok=True)
        np.savez(cache, features=features.numpy(), speakers=np.array([file.parent.name for file in files]))
    stored = np.load(cache)
    return Recordings(torch.from_numpy(stored["features"]).float(), stored["speakers"])


class Network(nn.Module):
    """A small x-vector network: convolutions over time, then mean and standard deviation over time."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        sizes = [(MELS, width, 5, 1), (width, width, 3, 2), (width, width, 3, 3)]
        self.frames = nn.Sequential(
            *(
                layer
                for into, out, kernel, dilation in sizes
                for layer in (nn.Conv1d(into, out, kernel, dilation=dilation), nn.ReLU(), nn.BatchNorm1d(out))
            )
        )
        self.embed = nn.Linear(2 * width, DIMENSIONS)

    def forward(self, features: Tensor) -> Tensor:
        frames = self.frames(features)
        return self.embed(torch.cat([frames.mean(2), frames.std(2)], 1))


def train(
    data: Recordings, names: Sequence[str], objective: str, seed: int, epochs: int = EPOCHS
) -> Projection:
    """Train network and projection on the recordings of `names`; the network is `projection.network`."""
    torch.manual_seed(seed)
    network, projection = Network(), Projection(DIMENSIONS, len(names), parse(objective))
    fit(network, projection, data, names, epochs=epochs)
    projection.network = network.eval()
    return projection


def fit(
    network: Network, projection: Projection, data: Recordings, names: Sequence[str], *, epochs: int
) -> None:
    place = {name: label for label, name in enumerate(names)}
    rows = torch.tensor([i for i, name in enumerate(data.speakers) if name in place])
    labels = torch.tensor([place[data.speakers[i]] for i in rows.tolist()])
    groups = [{"params": network.parameters(), "weight_decay": 1e-3}, *projection.head.param_groups()]
    optimizer = torch.optim.AdamW(groups, lr=2e-3)
    steps = epochs * -(-len(rows) // BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    network.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(rows)).split(BATCH):
            features = data.features[rows[batch]]
            start = int(torch.randint(0, FRAMES // 4, ()))  # a random three quarters of each recording
            _, loss = projection(network(features[:, :, start : start + 3 * FRAMES // 4]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()


@torch.no_grad()
def error_rate(network: Network, data: Recordings, names: Sequence[str]) -> float:
    """Equal error rate over all pairs of recordings of `names`, by the cosine of their embeddings."""
    rows = np.isin(data.speakers, names)
    z = nn.functional.normalize(network(data.features[torch.from_numpy(rows)]))
    first, second = np.triu_indices(len(z), 1)
    who = data.speakers[rows]
    return equal_error_rate(roc((z @ z.T).numpy()[first, second], who[first] == who[second]))


def splits(speakers: np.ndarray, count: int, held_out: int) -> list[tuple[list[str], list[str]]]:
    """`count` splits into training and held-out speakers; each speaker is held out once."""
    names = np.random.default_rng(0).permutation(np.unique(speakers))
    parts = [names[held_out * i : held_out * (i + 1)].tolist() for i in range(count)]
    return [(sorted(set(names.tolist()) - set(part)), sorted(part)) for part in parts]


def changed_speakers(
    data: Recordings, names: Sequence[str], joining: Sequence[str], epochs: int
) -> dict[str, float]:
    """Accuracy on the remaining speakers right after the change, with the kept head and with a new one."""
    projection = train(data, names, OBJECTIVES["AAM-Softmax"], seed=0, epochs=epochs)
    later = [*names[8:], *joining]
    staying = torch.from_numpy(np.isin(data.speakers, names[8:]))
    truth = torch.tensor([later.index(name) for name in data.speakers[staying.numpy()]])
    found = {}
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        save_head(f"{folder}/head", projection.head, classes=list(names))
        kept, fresh = (PrototypeHead(DIMENSIONS, len(later), projection.head.objective) for _ in range(2))
        load_head(f"{folder}/head", kept, classes=later)
        z = projection.network(data.features[staying])
        for name, head in (("kept", kept), ("fresh", fresh)):
            found[name] = (head.predict(z) == truth).double().mean().item()
    return found


def main(
    root: str,
    out: str = "results/speakers.json",
    seeds: int = 1,
    epochs: int = EPOCHS,
    held_out: int = HELD_OUT,
) -> Path:
    """Run what is missing in the record, and print a table."""
    commit()
    torch.set_num_threads(1)
    path = Path(out)
    data = load(Path(root), Path(root).parent / "log_mel.npz")
    record: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {"runs": {}}
    for split, (known, unknown) in enumerate(splits(data.speakers, SPLITS, held_out)):
        for name, objective in OBJECTIVES.items():
            for seed in range(seeds):
                key = f"{name}, split {split}, seed {seed}"
                if key in record["runs"]:
                    continue
                start = time.perf_counter()
                network = train(data, known, objective, seed, epochs).network
                rate = error_rate(network, data, unknown)
                run = {"objective": objective, "split": split, "seed": seed, "eer": rate, "held_out": unknown}
                record["runs"][key] = run | stamp(seconds=time.perf_counter() - start)
                write_record(path, record)
                print(f"{key}: equal error rate {100 * rate:.2f} %", flush=True)
    if "changed_speakers" not in record:
        known, unknown = splits(data.speakers, SPLITS, held_out)[0]
        record["changed_speakers"] = changed_speakers(data, known, unknown, epochs)
    record["summary"] = summary(record["runs"])
    record["settings"] = {
        "epochs": epochs,
        "batch": BATCH,
        "dimensions": DIMENSIONS,
        "clips": len(data.speakers),
    }
    write_record(path, record)
    for name, row in record["summary"].items():
        print(
            f"{name:12} {100 * row['eer']:.2f} % +- {100 * row['deviation']:.2f}",
            row.get("against softmax", ""),
        )
    return path


def summary(runs: dict[str, Any]) -> dict[str, Any]:
    """Mean over splits of the mean over seeds; differences from softmax are paired by split."""
    found: dict[str, Any] = {}
    means: dict[str, list[float]] = {}
    for name in OBJECTIVES:
        own = [run for key, run in runs.items() if key.startswith(f"{name},")]
        means[name] = [
            mean(r["eer"] for r in own if r["split"] == s) for s in sorted({r["split"] for r in own})
        ]
        found[name] = {"eer": mean(means[name]), "deviation": stdev(means[name]), "splits": means[name]}
    for name in list(OBJECTIVES)[1:]:
        apart = [theirs - base for theirs, base in zip(means[name], means["softmax"], strict=True)]
        found[name]["against softmax"] = {"mean": mean(apart), "interval": interval(apart)}
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", help="the folder data of AudioMNIST")
    parser.add_argument("--out", default="results/speakers.json", help="record to write, or to continue")
    parser.add_argument("--seeds", type=int, default=1, help="seeds of each split")
    main(**vars(parser.parse_args()))
