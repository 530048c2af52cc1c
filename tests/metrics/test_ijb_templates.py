"""Templates of IJB against a slow loop, whatever the size of a block."""

import numpy as np
import pytest

from tammes.metrics import ijb_templates
from tammes.metrics.ijb_templates import pair_scores, template_features, template_rows


def slow_templates(embeddings, template, medium):
    rows = {}
    for name in sorted(set(template)):
        total = 0
        for one in set(medium[template == name]):
            total = total + embeddings[(template == name) & (medium == one)].mean(0)
        rows[name] = total / np.linalg.norm(total)
    return np.array(list(rows)), np.stack(list(rows.values()))


@pytest.mark.parametrize("block", [1, 7, 10_000])
def test_media_are_averaged_and_templates_summed(block, monkeypatch):
    monkeypatch.setattr(ijb_templates, "BLOCK", block)
    random = np.random.default_rng(0)
    embeddings = random.normal(size=(200, 5)).astype(np.float32)
    template, medium = random.integers(3, 40, 200), random.integers(0, 4, 200)
    names, features = template_features(embeddings, template, medium)
    slow_names, slow = slow_templates(embeddings.astype(np.float64), template, medium)
    assert (names == slow_names).all()
    np.testing.assert_allclose(features, slow, atol=1e-6)
    first, second = random.choice(names, 300), random.choice(names, 300)
    scores = pair_scores(features, template_rows(names, first), template_rows(names, second))
    by_name = dict(zip(slow_names, slow, strict=True))
    expected = [by_name[a] @ by_name[b] for a, b in zip(first, second, strict=True)]
    np.testing.assert_allclose(scores, expected, atol=1e-6)


def test_a_video_of_many_frames_weighs_no_more_than_one_picture():
    still, frame = np.array([1.0, 0.0]), np.array([0.0, 1.0])
    embeddings = np.stack([still] + [frame] * 9)
    _, features = template_features(embeddings, np.zeros(10, int), np.array([0] + [1] * 9))
    np.testing.assert_allclose(features, [[np.sqrt(0.5), np.sqrt(0.5)]], atol=1e-6)


def test_pairs_of_templates_without_images_are_named():
    with pytest.raises(ValueError, match="2 templates in the pairs have no image, the first is 4"):
        template_rows(np.array([1, 3, 5]), np.array([1, 4, 9, 5]))
    with pytest.raises(ValueError, match="got 2, 1 and 1"):
        template_features(np.ones((2, 3)), np.array([0]), np.array([0]))
