import math

import numpy as np
import pytest
import torch

from tammes.geometry.sphere import angle
from tammes.heads import PrototypeHead
from tammes.lab.data import Batches, DataSet, InMemory
from tammes.lab.models import build
from tammes.lab.training import Classifier, evaluate
from tammes.losses import NormFace


@pytest.fixture
def problem():
    """A random classifier, and a data set whose last class has no test image."""
    torch.manual_seed(3)
    images = torch.randint(0, 256, (41, 1, 10, 11), dtype=torch.uint8)
    labels = torch.arange(41) % 5
    train, test = InMemory(images, labels), InMemory(images[:29], labels[:29] % 4)
    data = DataSet(name="noise", train=train, test=test, classes=tuple("abcde"), mean=(0.5,), std=(0.3,))
    backbone = build("cnn4", in_channels=1, image_size=(10, 11), embedding=6)
    return Classifier(backbone, PrototypeHead(6, 5, NormFace(scale=4))), data


def test_an_evaluation_is_what_the_definitions_say(problem):
    classifier, data = problem
    result = evaluate(classifier, Batches(data, "test", batch_size=8, training=False))
    classifier.eval()
    with torch.no_grad():
        z = torch.nn.functional.normalize(classifier.backbone((data.test.images / 255 - 0.5) / 0.3))
        w = torch.nn.functional.normalize(classifier.head.weight)
        y = data.test.labels
        cosines = z @ w.T
        own = cosines.gather(1, y[:, None]).squeeze(1)
        margins = own - cosines.scatter(1, y[:, None], -2.0).amax(1)
        right = cosines.argmax(1) == y
        pairs = [(angle(w[i], w[j]).item(), i, j) for i in range(5) for j in range(i)]
    assert result.accuracy == pytest.approx(right.float().mean().item())
    assert result.class_margin == pytest.approx(min(pairs)[0], rel=1e-5)
    assert result.class_margin_maximum == pytest.approx(math.acos(-1 / 4))
    assert result.sample_margin == pytest.approx(margins.mean().item(), abs=1e-5)
    assert result.sample_margin_ceiling == pytest.approx(5 / 4)
    assert result.gamma_min == pytest.approx(margins.min().item(), abs=1e-5)
    np.testing.assert_allclose(result.arrays["sample_margin"], margins, atol=1e-5)
    np.testing.assert_allclose(result.arrays["similarity"], own, atol=1e-5)
    for j in range(4):
        assert result.arrays["class_accuracy"][j] == pytest.approx(right[y == j].float().mean().item())
        assert result.arrays["class_gamma"][j] == pytest.approx(margins[y == j].min().item(), abs=1e-5)
        assert result.arrays["class_sample_margin"][j] == pytest.approx(
            margins[y == j].mean().item(), abs=1e-5
        )


def test_an_evaluation_in_half_precision_is_that_of_half_precision_embeddings(problem):
    classifier, data = problem
    batches, seen = Batches(data, "test", batch_size=8, training=False), []
    convolution = next(m for m in classifier.backbone.modules() if isinstance(m, torch.nn.Conv2d))
    convolution.register_forward_hook(lambda *call: seen.append(call[2].dtype))
    exact, half = evaluate(classifier, batches), evaluate(classifier, batches, autocast="bf16")
    assert set(seen[: len(seen) // 2]) == {torch.float32}
    assert set(seen[len(seen) // 2 :]) == {torch.bfloat16}
    assert half.arrays["sample_margin"].dtype == np.float32
    np.testing.assert_allclose(half.arrays["sample_margin"], exact.arrays["sample_margin"], atol=0.05)
    assert not np.array_equal(half.arrays["sample_margin"], exact.arrays["sample_margin"])
    assert half.class_margin == exact.class_margin  # prototypes are not rounded


def test_the_norms_of_prototypes_are_measured(problem):
    classifier, data = problem
    with torch.no_grad():
        classifier.head.weight.copy_(torch.nn.functional.normalize(classifier.head.weight))
        classifier.head.weight.mul_(torch.tensor([[2.0], [1.5], [0.5], [3.0], [1.0]]))
    result = evaluate(classifier, Batches(data, "test", batch_size=8, training=False))
    assert (result.smallest_norm, result.largest_norm) == pytest.approx((0.5, 3.0))


def test_some_samples_keep_their_embeddings(problem, monkeypatch):
    monkeypatch.setattr("tammes.metrics._example_samples.SHOWN", 7)
    classifier, data = problem
    arrays = evaluate(classifier, Batches(data, "test", batch_size=8, training=False)).arrays
    classifier.eval()
    with torch.no_grad():
        z = torch.nn.functional.normalize(classifier.backbone((data.test.images / 255 - 0.5) / 0.3))
    assert len(set(arrays["shown"].tolist())) == 7
    np.testing.assert_allclose(arrays["embedding"], z[arrays["shown"]], atol=1e-3)


def test_a_class_without_test_images_has_no_numbers(problem):
    classifier, data = problem
    result = evaluate(classifier, Batches(data, "test", batch_size=8, training=False))
    rows = result.per_class(data.classes)
    assert rows[4]["accuracy"] is rows[4]["gamma"] is rows[4]["sample_margin"] is None
    assert all(row["nearest_class"] != row["class"] for row in rows)
    nearest = result.arrays["nearest_angle"]
    assert math.degrees(nearest.min()) == pytest.approx(result.numbers()["class_margin_deg"])


def test_evaluating_leaves_the_mode_and_the_weights_alone(problem):
    classifier, data = problem
    before = {name: value.clone() for name, value in classifier.state_dict().items()}
    classifier.train()
    evaluate(classifier, Batches(data, "test", batch_size=8, training=False))
    assert classifier.training
    assert all(torch.equal(value, before[name]) for name, value in classifier.state_dict().items())


def test_the_ceiling_is_lower_for_features_that_are_never_negative(problem):
    _, data = problem
    backbone = build("cnn4", in_channels=1, image_size=(10, 11))
    classifier = Classifier(backbone, PrototypeHead(backbone.out_features, 5, NormFace(scale=4)))
    result = evaluate(classifier, Batches(data, "test", batch_size=8, training=False))
    assert result.sample_margin_ceiling == pytest.approx(math.sqrt(5 / 4))


def test_flipped_images_enter_by_their_mean_embedding(problem):
    classifier, data = problem
    plain = evaluate(classifier, Batches(data, "test", batch_size=8, training=False))
    both = evaluate(classifier, Batches(data, "test", batch_size=8, training=False), flip=True)
    mirrored = InMemory(data.test.images.flip(-1), data.test.labels)
    data = DataSet(**{**vars(data), "test": mirrored})
    same = evaluate(classifier, Batches(data, "test", batch_size=8, training=False), flip=True)
    np.testing.assert_allclose(same.arrays["sample_margin"], both.arrays["sample_margin"], atol=1e-6)
    assert plain.sample_margin != pytest.approx(both.sample_margin)
