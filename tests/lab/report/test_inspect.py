"""`inspect`: the margins of any model from arrays, and what it does with bad ones."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch

from tammes.lab.report import inspect


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_the_numbers_are_what_the_definitions_say(make):
    embeddings, labels, prototypes = make(5, 7, 83, noise=1.5)
    found = inspect(embeddings, labels, prototypes)
    cosines = unit(embeddings) @ unit(prototypes).T
    own = cosines[np.arange(83), labels]
    others = np.where(np.eye(5, dtype=bool)[labels], -2, cosines).max(1)
    between = np.degrees(np.arccos(unit(prototypes) @ unit(prototypes).T - 1e-12))
    right = cosines.argmax(1) == labels
    assert 0 < right.mean() < 1  # both kinds occur
    assert found.numbers["accuracy"] == pytest.approx(right.mean())
    assert found.numbers["sample_margin"] == pytest.approx((own - others).mean(), abs=1e-6)
    assert found.numbers["gamma_min"] == pytest.approx((own - others).min(), abs=1e-6)
    assert found.numbers["class_margin_deg"] == pytest.approx(between[~np.eye(5, dtype=bool)].min(), abs=1e-4)
    assert found.numbers["class_margin_maximum_deg"] == pytest.approx(math.degrees(math.acos(-1 / 4)))
    np.testing.assert_allclose(found.arrays["similarity"], own, atol=1e-6)
    np.testing.assert_array_equal(found.arrays["prediction"], cosines.argmax(1))
    assert not found.notes


def test_class_means_stand_in_for_prototypes():
    """In the plane: class a at 0 and 40 degrees, of different lengths, class b at 100 and 120."""
    angles = np.radians([0, 40, 100, 120])
    embeddings = np.array([[9.0], [1.0], [1.0], [2.0]]) * np.stack([np.cos(angles), np.sin(angles)], 1)
    found = inspect(embeddings, np.array(["a", "a", "b", "b"]))
    assert found.classes == ["a", "b"]
    assert found.numbers["class_margin_deg"] == pytest.approx(110 - 20, abs=1e-4)
    by_hand = [math.cos(math.radians(x)) - math.cos(math.radians(y)) for x, y in ((20, 110), (20, 70))]
    by_hand += [math.cos(math.radians(x)) - math.cos(math.radians(y)) for x, y in ((10, 80), (10, 100))]
    np.testing.assert_allclose(found.arrays["sample_margin"], by_hand, atol=1e-6)
    assert "mean direction" in found.notes[0]


def test_tensors_arrays_and_lists_are_the_same(make):
    embeddings, labels, prototypes = make(3, 4, 20)
    plain = inspect(embeddings, labels, prototypes).numbers
    weight = torch.tensor(prototypes, requires_grad=True)
    assert inspect(torch.tensor(embeddings), torch.tensor(labels), weight).numbers == plain
    assert inspect(embeddings.tolist(), labels.tolist(), prototypes.tolist()).numbers == pytest.approx(plain)


@pytest.mark.parametrize(("mine", "theirs"), [("f4", "f8"), ("f8", "f4"), ("f2", "f8"), ("f4", "i8")])
def test_precisions_may_differ(make, mine, theirs):
    embeddings, labels, _ = make(3, 4, 20)
    prototypes = np.eye(4)[:3]
    found = inspect(embeddings.astype(mine), labels, prototypes.astype(theirs))
    expected = inspect(embeddings.astype(mine).astype("f8"), labels, prototypes)
    assert found.numbers["sample_margin"] == pytest.approx(expected.numbers["sample_margin"], abs=1e-6)


def test_rows_that_are_not_finite_are_counted_and_left_out(make):
    embeddings, labels, prototypes = make(4, 6, 40)
    broken = embeddings.copy()
    broken[3, 2], broken[10], broken[11, 0] = np.nan, 0.0, np.inf
    found = inspect(broken, labels, prototypes)
    clean = inspect(np.delete(embeddings, [3, 10, 11], 0), np.delete(labels, [3, 10, 11]), prototypes)
    assert found.numbers == clean.numbers
    assert found.samples == 37
    assert found.notes == ["Left out: 3 of 40 samples, whose embeddings are zero or not finite."]
    with pytest.raises(ValueError, match="None of the 40 embeddings is finite"):
        inspect(np.full_like(embeddings, np.nan), labels, prototypes)


def test_a_class_with_one_sample_is_not_compared_with_itself(make):
    embeddings, labels, prototypes = make(4, 6, 40)
    embeddings, labels = np.vstack([embeddings, prototypes[:1]]), np.append(labels, 99)
    found = inspect(embeddings, labels)
    assert found.samples == 40
    assert found.classes[-1] == "99"
    assert any("single sample, which is its own mean: 1." in note for note in found.notes)
    # It is still a rival: equal to the prototype of class 0, it takes margin from class 0.
    without = inspect(embeddings[:-1], labels[:-1])
    mine = labels[:-1] == 0
    assert found.arrays["sample_margin"][mine].mean() < without.arrays["sample_margin"][mine].mean()
    given = np.vstack([prototypes, prototypes[:1]])  # with prototypes it is a sample like others
    assert inspect(embeddings, np.minimum(labels, 4), given).samples == 41
    with pytest.raises(ValueError, match="Each of the 4 classes has a single sample"):
        inspect(prototypes, np.arange(4))


def test_labels_may_be_any_integers_or_names(make):
    embeddings, labels, prototypes = make(3, 4, 30)
    names = np.array(["ant", "bee", "cat"])
    plain = inspect(embeddings, labels)
    spread = inspect(embeddings, np.array([-7, 20, 1000])[labels])
    assert spread.numbers == plain.numbers
    assert spread.classes == ["-7", "20", "1000"]
    named = inspect(embeddings, names[labels], prototypes, classes=names.tolist())
    assert named.numbers == inspect(embeddings, labels, prototypes).numbers
    assert named.classes == ["ant", "bee", "cat"]
    some = inspect(embeddings[labels > 0], labels[labels > 0], classes=names.tolist())
    assert some.classes == ["bee", "cat"]


def test_the_ceiling_that_applies_to_features_without_negative_entries(make):
    """Errata 14: the root of k/(k-1) for free prototypes; means of such features have no cosine below 0."""
    embeddings, labels, prototypes = make(5, 9, 60)
    plain = inspect(embeddings, labels, prototypes)
    assert plain.numbers["sample_margin_ceiling"] == pytest.approx(5 / 4)
    free = inspect(abs(embeddings), labels, prototypes)
    assert free.numbers["sample_margin_ceiling"] == pytest.approx(math.sqrt(5 / 4))
    assert free.numbers["class_margin_maximum_deg"] == pytest.approx(math.degrees(math.acos(-1 / 4)))
    means = inspect(abs(embeddings), labels)
    assert means.numbers["sample_margin_ceiling"] == 1.0
    assert means.numbers["class_margin_maximum_deg"] == pytest.approx(90.0)
    best = inspect(np.repeat(np.eye(4), 2, 0), np.arange(8) // 2)  # which attains both
    assert best.numbers["sample_margin"] == best.numbers["sample_margin_ceiling"]
    assert best.numbers["class_margin_deg"] == pytest.approx(best.numbers["class_margin_maximum_deg"])


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"labels": np.arange(19) % 3}, ValueError, r"got shape \(19,\) for 20 embeddings"),
        ({"labels": np.zeros((20, 1), int)}, ValueError, r"got shape \(20, 1\)"),
        ({"labels": np.arange(20) / 3}, TypeError, "labels must be integers or names, got float64"),
        ({"labels": np.full(20, 3)}, ValueError, r"labels must lie in \[0, 3\).*got 3"),
        ({"labels": np.full(20, "ant")}, ValueError, "without classes"),
        ({"labels": np.full(20, "ant"), "classes": ["a", "b", "c"]}, ValueError, "among classes, got 'ant'"),
        (
            {"labels": np.zeros(20, int), "prototypes": None},
            ValueError,
            r"2 classes, got only \[0\]",
        ),
        ({"classes": ["a", "b"]}, ValueError, "name the 3 prototypes, got 2 names"),
        ({"embeddings": np.zeros(20)}, ValueError, r"embeddings must be a matrix.*got shape \(20,\)"),
        ({"embeddings": np.ones((20, 4), complex)}, TypeError, "real numbers"),
        ({"embeddings": np.full((20, 4), "ant")}, TypeError, "embeddings must be numbers"),
        ({"prototypes": np.ones((3, 4), np.longdouble)}, TypeError, "prototypes must be numbers"),
        ({"prototypes": np.ones((3, 5))}, ValueError, "4 columns, as the embeddings have, got 5"),
        ({"prototypes": np.full((3, 4), np.nan)}, ValueError, "prototypes must be finite"),
        ({"prototypes": np.ones((1, 4))}, ValueError, "at least 2 classes"),
    ],
)
def test_bad_arrays_are_refused_with_the_reason(make, changes, error, message):
    embeddings, labels, prototypes = make(3, 4, 20)
    given = {"embeddings": embeddings, "labels": labels, "prototypes": prototypes} | changes
    with pytest.raises(error, match=message):
        inspect(**given)


STRANGE = {
    "collapsed": lambda rng: np.tile(rng.normal(size=(1, 8)), (300, 1)),
    "collapsed in the plane": lambda rng: np.tile(rng.normal(size=(1, 2)), (300, 1)),
    "one dimension": lambda rng: rng.normal(size=(300, 1)),
    "one direction": lambda rng: np.abs(rng.normal(size=(300, 1))),
}


def test_a_model_without_variance_gets_its_page(tmp_path):
    """More classes than prototypes are drawn for, so that nothing but the samples is on the map."""
    np.savez(tmp_path / "z.npz", **{kind: make(np.random.default_rng(0)) for kind, make in STRANGE.items()})
    code = """if True:
        import sys, numpy as np
        from tammes.lab.report import inspect, write_page
        for kind, z in np.load(sys.argv[1]).items():
            print(kind, flush=True)
            write_page([inspect(z, np.arange(300) % 120)], f"{sys.argv[2]}/{kind}.html")
    """
    words = [sys.executable, "-c", code, str(tmp_path / "z.npz"), str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    assert "embeddings are equal" in (tmp_path / "collapsed.html").read_text()


@pytest.mark.parametrize("factor", [1e30, 1e-30])
def test_very_large_and_very_small_embeddings_have_the_margins_of_their_directions(make, factor):
    z, labels, prototypes = (np.asarray(array) for array in make(5, 8, 60))
    plain = inspect(z.astype(np.float32), labels, prototypes.astype(np.float32)).numbers
    scaled = (factor * z).astype(np.float32), labels, (factor * prototypes).astype(np.float32)
    found = inspect(*scaled).numbers
    for name in ("accuracy", "class_margin_deg", "sample_margin", "gamma_min"):
        assert found[name] == pytest.approx(plain[name], abs=1e-5), name
