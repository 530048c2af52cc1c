"""The page as a file: self-contained, safe, complete, and of a size that does not grow with the classes."""

import base64
import dataclasses
import hashlib
import json
import math
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from markupsafe import Markup

from tammes.lab.report import Section, inspect, write_page
from tammes.lab.report.confusions import confusions
from tammes.lab.report.contents import TOPICS, page
from tammes.lab.report.page import Page
from tammes.lab.report.worst_classes import worst_first
from tammes.metrics._example_samples import confused_pairs

pytestmark = pytest.mark.usefixtures("flat")

VOID = {"meta", "br", "img", "input", "link", "hr"}


class Reader(HTMLParser):
    """Elements with their attributes, and the visible text; fails where tags are not closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.text = [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"script", "style"} & set(self.open):
            self.text.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def words(self):
        return " ".join(" ".join(self.text).split())


def read(subjects):
    return Reader(page(subjects, "A page").html())


def matrices(shown):
    return [attributes for attributes in shown.all("image") if "data-names" in attributes]


def test_the_page_is_one_file_that_loads_nothing(trained, tmp_path):
    write_page(trained, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    found = Reader(text)
    for _, attributes in found.elements:
        for name in ("src", "href", "xlink:href", "action", "srcset"):
            assert attributes.get(name, "data:").startswith("data:")
    assert "url(" not in text
    assert "@import" not in text
    assert len(text) < 400_000
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    policy = next(m["content"] for m in found.all("meta") if "http-equiv" in m)
    assert "default-src 'none'" in policy


def test_the_policy_of_a_page_allows_its_own_script_alone(trained, tmp_path):
    write_page(trained, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    script = re.search(r"<script>(.*)</script>", text, re.DOTALL)
    assert script is not None
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    (policy,) = [m["content"] for m in Reader(text).all("meta") if "http-equiv" in m]
    directives = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert directives["script-src"] == f"'sha256-{digest}'"


def test_names_from_elsewhere_are_text_and_never_markup(make):
    embeddings, labels, prototypes = make(3, 4, 60, noise=2.0)
    evil = ['</script><script>alert("x")</script>', '"><img src=x onerror=alert(1)>', "<b>&amp;'"]
    found = inspect(embeddings, labels, prototypes, classes=evil, name="<i>model</i>")
    record = {"config": {"objective": "</pre><script>1</script>", "data": evil[0]}}
    shown = read([dataclasses.replace(found, record=record, notes=[evil[1]])])
    assert len(shown.all("script")) == 1
    assert not shown.all("img")
    assert not shown.all("i")
    assert evil[0] in shown.words
    (image,) = matrices(shown)
    assert json.loads(image["data-names"]) == evil


def test_the_weakest_class_is_the_first_of_the_table():
    """Both classes are always wrong; the second one by a larger margin."""
    corners = np.eye(3)
    samples = np.array([[0.0, 0.7, 0.8], [0.0, 0.1, 1.0], [0.0, 0.0, 1.0]])
    found = inspect(samples, np.array([0, 1, 2]), corners, classes=["ant", "bee", "cow"])
    words = read([found]).words
    first = worst_first(found)[0]
    assert found.arrays["class_accuracy"].tolist() == [0, 0, 1]
    assert first == int(np.argmin(found.arrays["class_gamma"])) == 1
    assert "Weakest class: bee (0.0 %)." in words
    assert "Most frequent mistake" not in words  # each happens once
    twice = inspect(samples[[0, 0, 1, 2]], np.array([0, 0, 1, 2]), corners, classes=["ant", "bee", "cow"])
    assert "Most frequent mistake: ant taken for cow (2 of 2)." in read([twice]).words


def test_it_says_what_the_numbers_are_what_they_could_be_and_how_close(make):
    """An orthogonal frame of four classes in six dimensions: 90 degrees of acos(-1/3) = 109.47."""
    found = inspect(np.repeat(np.eye(6)[:4], 3, 0) - 1e-9, np.arange(12) // 3, np.eye(6)[:4], name="frame")
    words = read([found]).words
    assert "frame classifies 100.00 % of 12 samples of 4 classes correctly" in words
    share = f"{90 / math.degrees(math.acos(-1 / 3)) * 100:.1f} % of the maximum"
    assert f"90.00° apart: {share}, 109.47° for 4 directions in 6 dimensions" in words
    assert f"The mean sample margin is 1.0000, {100 * 3 / 4:.1f} % of the 1.3333" in words
    assert "not used for training" not in words  # nobody knows
    assert "None: every sample is classified correctly." in words
    for term in ("Accuracy", "Class margin", "Sample margin", "prototype", "embedding"):
        assert term in words


def test_several_models_are_introduced_by_the_best_of_them(trained):
    better = max(trained, key=lambda model: model.numbers["accuracy"])
    words = read(trained).words
    named = f"{better.label} ({100 * better.numbers['accuracy']:.2f} %)"
    assert f"Highest accuracy: {named}." in words
    assert "No difference" not in words
    again = dataclasses.replace(better, name="again")
    assert (
        f"No difference in accuracy: the best, {named}, is 0 of 120 images ahead."
        in read([better, again]).words
    )


def test_the_reason_of_the_ceiling_is_the_one_that_applies(make):
    embeddings, labels, prototypes = make(5, 9, 60)
    assert "1.2500 (k/(k−1) for k = 5" in read([inspect(embeddings, labels, prototypes)]).words
    behind_relu = read([inspect(abs(embeddings), labels, prototypes)]).words
    assert f"{math.sqrt(5 / 4):.4f} (not k/(k−1) = 1.2500 but its square root" in behind_relu
    assert (
        "1.0000 (embeddings and class means without negative"
        in read([inspect(abs(embeddings), labels)]).words
    )
    embeddings, labels, prototypes = make(50, 2, 100)
    crowded = read([inspect(embeddings, labels, prototypes)])
    assert "50 classes share the sphere in 2 dimensions" in crowded.words
    assert "which 50 classes in 2 dimensions cannot be" in crowded.words


def test_signs_and_not_dimensions_are_the_reason_of_right_angles(make):
    embeddings, labels, prototypes = make(8, 16, 60)
    means = read([inspect(abs(embeddings), labels)]).words
    assert "90.00° for 8 directions without negative entries" in means
    assert "directions without negative entries are at most 90.00° apart" in means
    assert "16 dimensions can all be 90.00°" not in means
    free = read([inspect(abs(embeddings), labels, prototypes)]).words
    assert "8 directions in 16 dimensions can all be 98.21° apart, but no more" in free


def test_a_ceiling_that_so_many_classes_cannot_reach_is_called_a_bound(make):
    embeddings, labels, prototypes = make(40, 30, 120)
    words = read([inspect(embeddings, labels, prototypes)]).words
    assert "a bound that 40 classes in 30 dimensions do not reach" in words


def test_imbalanced_samples_may_exceed_what_classes_of_equal_size_allow():
    """All samples but four lie opposite to the other two classes."""
    prototypes = np.array([[1.0, 0.0], [-0.96, 0.28], [-0.96, -0.28]])
    labels = np.repeat([0, 1, 2], [96, 2, 2])
    found = inspect(prototypes[labels], labels, prototypes)
    assert found.numbers["sample_margin"] > found.numbers["sample_margin_ceiling"]
    assert "possible for classes of equal size" in read([found]).words


def test_lengths_are_mentioned_where_they_decide(make):
    embeddings, labels, prototypes = make(4, 6, 40)
    found = inspect(embeddings, labels, prototypes)
    assert "losses that use vector lengths" not in read([found]).words
    other = found.arrays["prediction"].copy()
    other[0] = (other[0] + 1) % 4
    changed = dataclasses.replace(found, arrays={**found.arrays, "prediction": other})
    assert "losses that use vector lengths" in read([changed]).words


def test_a_bound_is_not_called_the_maximum(make):
    embeddings, labels, prototypes = make(60, 5, 120)
    words = read([inspect(embeddings, labels, prototypes)]).words
    assert "of the upper bound" in words
    assert "the true maximum may be slightly lower" in words


def test_histograms_count_every_sample_once(make):
    embeddings, labels, prototypes = make(4, 6, 500, noise=1.5)
    found = inspect(embeddings, labels, prototypes)
    tips = [a.get("data-tip", "") for a in read([found]).all("rect")]
    for kind, expected in (
        ("right", (found.arrays["label"] == found.arrays["prediction"]).sum()),
        ("wrong", (found.arrays["label"] != found.arrays["prediction"]).sum()),
        ("own prototype", 500),
        ("nearest other", 500),
    ):
        counts = [int(tip.rpartition(": ")[2]) for tip in tips if tip.startswith(kind)]
        assert sum(counts) == 2 * expected  # drawn twice, plain and logarithmic


def test_the_matrix_holds_the_cosines_of_the_prototypes(make):
    embeddings, labels, prototypes = make(5, 7, 20)
    (image,) = matrices(read([inspect(embeddings, labels, prototypes)]))
    stored = np.frombuffer(base64.b64decode(image["data-hundredths"]), np.uint8).reshape(5, 5)
    units = prototypes / np.linalg.norm(prototypes, axis=1, keepdims=True)
    np.testing.assert_allclose((stored.astype(float) - 100) / 100, units @ units.T, atol=0.0051)


def test_confused_pairs_are_counted(make):
    """Class b is taken for a twice, class c for a once; the rest is right."""
    eye = np.eye(3)
    embeddings = eye[[0, 0, 1, 0, 0, 2, 0]]
    found = inspect(embeddings, np.array(list("aabbbcc")), eye, classes=list("abc"))
    section = page([found], "x").parts[0].sections[0]
    pairs = re.findall(r"<p data-pair.*?</p>", section.body)
    texts = [re.sub("<.*?>", "", pair) for pair in pairs]
    assert texts == ["2 × b taken for a, 66.7 %", "1 × c taken for a, 50.0 %"]
    assert "3 of 7 samples are misclassified" in section.text


def test_the_confusion_matrix_of_many_classes_has_those_most_often_confused(make):
    embeddings, labels, prototypes = make(80, 4, 800)
    found = inspect(embeddings, labels, prototypes)
    (section,) = confusions(found)
    assert "The matrix has the 40 most often confused classes." in section.text
    assert section.body.count("rotate(-90)") == 40
    pairs = confused_pairs(found.arrays["label"], found.arrays["prediction"])
    opened = re.findall(r'data-open="(\d+)-(\d+)"', section.body)
    assert {tuple(map(int, pair)) for pair in opened} == {pair for pair, _ in pairs[:20]}


def test_the_worst_class_comes_first_with_its_nearest_rival(make):
    angles = np.radians([0, 50, 180])
    prototypes = np.stack([np.cos(angles), np.sin(angles)], 1)
    found = inspect(prototypes[[0, 0, 1, 2, 0]], [0, 0, 1, 2, 1], prototypes, classes=["x", "y", "z"])
    section = next(s for s in page([found], "t").parts[0].sections if s.title == "Classes, worst first")
    first = re.sub("<.*?>", " ", section.body.split("<tbody>")[1].split("</tr>")[0]).split()
    assert first[:5] == ["y", "x", "50.00", "2", "50.00"]


def test_models_on_different_data_are_kept_apart(trained):
    together = read(trained)
    assert "not comparable" not in together.words
    apart = read([trained[0], dataclasses.replace(trained[1], data="spots")])
    assert "Models on different data are not comparable." in apart.words
    heads = [a for a in apart.all("th") if "colspan" in a]
    assert len(heads) == 2  # a heading for each data set


def test_settings_that_differ_are_shown_and_all_are_kept(trained):
    shown = read(trained)
    assert "Settings that differ" in shown.words
    assert "2024-05-01" in shown.words
    text = page(trained, "x").closing[-1].body
    differing = text[: text.index("Provenance")]
    assert "seed" in differing
    assert "objective" not in differing.replace("<details>", "")  # the same for both


def test_results_have_columns_for_what_differs_and_one_maximum_if_it_is_shared(trained):
    heads = re.findall(r'<th(?: class="number")?>(.*?)</th>', page(trained, "x").opening[0].body)
    assert heads[:5] == ["", "seed", "acc %", "95 % interval", "behind the best"]
    assert f"class margin°, max {trained[0].numbers['class_margin_maximum_deg']:.2f}" in heads
    assert "max" not in heads
    numbers = {**trained[1].numbers, "class_margin_maximum_deg": 170.0}
    apart = [trained[0], dataclasses.replace(trained[1], numbers=numbers)]
    heads = re.findall(r'<th(?: class="number")?>(.*?)</th>', page(apart, "x").opening[0].body)
    assert heads[heads.index("class margin°") + 1] == "max"


def test_one_model_has_tiles(trained):
    body = page(trained[:1], "x").opening[0].body
    tiles = dict(re.findall("<span>(.*?)</span><strong>(.*?)</strong>", body))
    numbers = trained[0].numbers
    assert tiles["accuracy"] == f"{100 * numbers['accuracy']:.2f} %"
    assert tiles["class margin"] == f"{numbers['class_margin_deg']:.2f}°"
    assert "95 % interval: " in body


def test_ten_thousand_classes_are_aggregated(make):
    embeddings, labels, prototypes = make(10_000, 16, 20_000)
    found = inspect(embeddings, labels, prototypes)
    sizes = {"class_count": np.arange(10_000, 0, -1)}
    numbers = {"many": 0.5, "medium": 0.5, "few": 0.5, "mean_class_accuracy": 0.5, "ece": 0.1}
    found = dataclasses.replace(found, arrays={**found.arrays, **sizes}, numbers={**found.numbers, **numbers})
    text = page([found], "many").html()
    assert "9,950 images" in text  # the mean of the hundred largest
    shown = Reader(text)
    assert len(text) < 1_000_000
    assert len(shown.all("rect")) < 400
    assert len(shown.all("circle")) < 1_500
    assert len(shown.all("tr")) < 60
    (image,) = matrices(shown)
    names = json.loads(image["data-names"])
    assert len(names) == 60
    assert set(found.closest_pair()) <= set(names)


def test_a_run_recorded_without_similarities_embeddings_and_checkpoint_has_a_page_too(trained):
    kept = {n: a for n, a in trained[0].arrays.items() if n not in ("similarity", "shown", "embedding")}
    older = dataclasses.replace(trained[0], arrays=kept, prototypes=None)
    shown = read([older])
    assert "prototypes of this run are not stored" in shown.words
    assert not shown.all("circle") or "Map" not in shown.words


def test_classes_without_samples_are_said(make):
    embeddings, labels, prototypes = make(5, 6, 40)
    some = labels < 3
    words = read([inspect(embeddings[some], labels[some], prototypes)]).words
    assert "2 of 5 classes have no test samples" in words


def test_a_topic_adds_its_sections(trained, monkeypatch):
    extra = lambda model: [Section("Of " + model.name, "Why < how", Markup("<p>body</p>"))]  # noqa: E731
    monkeypatch.setattr("tammes.lab.report.contents.TOPICS", (*TOPICS, extra))
    assert "Of runs/a Why < how body" in read(trained).words


def test_a_page_of_nothing_is_refused(tmp_path):
    with pytest.raises(ValueError, match="at least one model"):
        write_page([], tmp_path / "page.html")
    assert not list(tmp_path.iterdir())


def test_the_bare_page_shows_its_sections_in_order():
    section = [Section(str(i), f"text {i}", "") for i in range(3)]
    found = Page(title="T", lead="L", opening=section[:1], parts=[], closing=section[1:])
    assert "T L 0 text 0 1 text 1 2 text 2" in Reader(found.html()).words


def test_a_model_measured_on_other_classes_than_its_own_has_a_page_too(trained):
    """As in re-identification: margins of the prototypes, and numbers of its own kind."""
    kept = ("class_margin_deg", "class_margin_maximum_deg", "maximum_is_exact")
    numbers = {name: trained[0].numbers[name] for name in kept} | {"mAP": 0.625}
    epochs = [{"epoch": 0, "mAP": 0.5, "loss": 1.0}, {"epoch": 1, "mAP": 0.625, "loss": 0.5}]
    arrays = {name: trained[0].arrays[name] for name in ("nearest_class", "nearest_angle")}
    found = dataclasses.replace(trained[0], numbers=numbers, arrays=arrays, epochs=epochs)
    shown = read([found])
    assert "62.50" in shown.words
    assert "mAP, %" in shown.words
    assert "acc %" not in shown.words
    assert "Worst classes" not in shown.words
    assert len(matrices(shown)) == 1  # the prototypes
    together = read([found, trained[1]])
    assert "mAP %" in together.words
    assert "acc %" in together.words
