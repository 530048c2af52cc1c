"""Models to write pages about."""

import dataclasses
import io

import numpy as np
import pytest
from PIL import Image

from tammes.lab.report import ModelResults, inspect
from tammes.metrics._example_samples import example_samples


@pytest.fixture
def flat(monkeypatch):
    """Skip t-SNE, which takes seconds."""
    monkeypatch.setattr("tammes.lab.report.sample_map.project", lambda points: points[:, :2])


def clusters(k: int, d: int, n: int, *, noise: float = 0.4, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Embeddings around k random prototypes, their labels, and the prototypes."""
    rng = np.random.default_rng(seed)
    prototypes = rng.normal(size=(k, d)) / np.sqrt(d)
    labels = np.arange(n) % k
    return prototypes[labels] + rng.normal(0, noise / np.sqrt(d), (n, d)), labels, prototypes


@pytest.fixture
def make():
    """Arrays of a model: `make(k, d, n)`."""
    return clusters


@pytest.fixture
def trained():
    """Two models with a training history and a record, like runs."""
    return [_trained("runs/a", 0.9, 1), _trained("runs/b", 0.5, 2)]


def _trained(name: str, noise: float, seed: int) -> ModelResults:
    embeddings, labels, prototypes = clusters(6, 8, 120, noise=noise, seed=seed)
    found = inspect(embeddings, labels, prototypes, classes=[f"kind {j}" for j in range(6)], name=name)
    epochs = [dict(found.numbers) | {"epoch": e, "loss": 1 / (e + 1)} for e in range(5)]
    config = {"objective": "NormFace(s=10)", "seed": seed}
    record = {"config": config, "date": "2024-05-01", "seconds": 3.5, "machine": {"device": "cpu"}}
    return dataclasses.replace(found, data="stripes", epochs=epochs, record=record)


@pytest.fixture
def with_photos() -> ModelResults:
    """A model some of whose samples have photos, as runs keep them."""
    model = _trained("runs/photos", 1.2, 3)
    chosen = example_samples(model.arrays).ranked()
    files = []
    for sample in chosen:
        buffer = io.BytesIO()
        Image.new("RGB", (16, 12), (sample, 2 * sample, 255 - sample)).save(buffer, "JPEG")
        files.append(buffer.getvalue())
    photos = {
        "photo_sample": np.array(chosen),
        "photo_jpeg": np.frombuffer(b"".join(files), np.uint8),
        "photo_end": np.cumsum([len(file) for file in files]),
        "photo_size": np.array([12, 16]),
        "photo_name": np.array([f"kind/{sample}.jpg" for sample in chosen]),
    }
    return dataclasses.replace(model, arrays=model.arrays | photos)
