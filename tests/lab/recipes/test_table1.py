import math

import pytest

from tammes.lab.recipes import table1
from tammes.lab.recipes.figures import table1_figures
from tammes.losses import parse


@pytest.mark.parametrize(
    ("dataset", "name", "printed"),
    [  # read again from the page, not from our file
        ("mnist", "ce", (99.11, 87.39, 0.5014)),
        ("mnist", "arcface-s20+0.5rsm", (99.19, 91.38, 1.030)),
        ("cifar10", "normface-s64", (94.01, 36.50, 0.2633)),
        ("cifar10", "normface-s64+0.5rsm", (94.42, 93.87, 0.9508)),
        ("cifar100", "cosface-s20+0.5rsm", (74.41, 89.02, 0.4780)),
        ("cifar100", "normface-s64+rsm", (74.24, 81.57, 0.4386)),
        ("cifar100", "rsm", (62.08, 58.58, 0.3793)),
    ],
)
def test_the_printed_numbers(dataset, name, printed):
    found = table1.printed(dataset)[name]
    assert tuple(found.values()) == printed
    assert list(found) == ["accuracy", "class_margin_deg", "sample_margin"]


def test_the_paper_prints_every_row_but_those_that_did_not_converge():
    every = {variant.name for variant in table1.variants()}
    extra = {f"lmsoftmax-s{s}" for s in (10, 20, 40, 64)} | {"normface-s10-fixed"}
    lost = {s: {f"arcface-s{s}{end}" for end in table1.R_SM} for s in (40, 64)}
    assert len(every - extra) == 3 + 3 * 3 * 5
    assert table1.printed("mnist").keys() == every - extra
    assert table1.printed("cifar10").keys() == every - extra - lost[64]
    assert table1.printed("cifar100").keys() == every - extra - lost[64] - lost[40]


def test_no_printed_class_margin_is_beyond_the_possible():
    for dataset, k in (("mnist", 10), ("cifar10", 10), ("cifar100", 100)):
        most = math.degrees(math.acos(-1 / (k - 1)))
        for numbers in table1.printed(dataset).values():
            assert 0 < numbers["class_margin_deg"] < most
            assert 50 < numbers["accuracy"] < 100
            assert 0 < numbers["sample_margin"] < k / (k - 1)


@pytest.mark.parametrize(
    ("dataset", "model", "epochs", "lr"),
    [
        ("mnist", "cnn4-padded", 100, 0.01),
        ("cifar10", "resnet18", 200, 0.1),
        ("cifar100", "resnet34", 250, 0.1),
    ],
)
def test_the_paper_preset_is_the_appendix(dataset, model, epochs, lr):
    for row in table1.table(dataset=dataset, preset="paper").rows:
        config = row.config
        assert (config.model, config.epochs, config.lr) == (model, epochs, lr)
        assert (config.optimizer, config.momentum, config.schedule) == ("sgd", 0.9, "cosine")
        assert (config.weight_decay, config.prototype_weight_decay, config.batch_size) == (1e-4, 1e-4, 256)
        assert (config.clip, config.unit_prototypes, config.augment_style) == (5.0, False, "standard")
        assert config.prototype_init == ("linear" if config.trainable_prototypes else "packed")


def test_a_key_says_which_objective_a_row_has():
    rows = {row.key: row for row in table1.table(dataset="cifar10", preset="laptop").rows}
    assert len(rows) == 3 + 45 + 4 + 1 + 1
    objective = lambda name: parse(rows[f"cifar10-laptop-{name}"].config.objective)  # noqa: E731
    assert objective("cosface-s40+rsm") == parse("CosFace(s=40, m=0.1) + R_sm")
    assert objective("arcface-s5+0.5rsm") == parse("ArcFace(s=5, m=0.1) + 0.5*R_sm")
    assert objective("lmsoftmax-s64") == parse("LMSoftmax(s=64)")
    assert rows["cifar10-laptop-normface-s64+rsm"].versus == "cifar10-laptop-normface-s64"
    assert {row.versus for row in rows.values()} <= {"", *rows}
    wide = rows["cifar10-laptop-fastnet-normface-s10+0.5rsm"].config
    assert (wide.model, wide.objective) == ("fastnet", "NormFace(s=10) + 0.5*R_sm")
    fixed = rows["cifar10-laptop-normface-s10-fixed"].config
    assert not fixed.trainable_prototypes


def test_laptop_rows_keep_data_and_objectives():
    for dataset in table1.NAMES:
        paper, laptop = (table1.table(dataset=dataset, preset=preset).rows for preset in ("paper", "laptop"))
        for theirs, ours in zip(paper, laptop, strict=False):
            assert theirs.label == ours.label
            assert theirs.config.objective == ours.config.objective
            assert theirs.config.data == ours.config.data == dataset
            assert ours.config.epochs == 10


def test_all_rows_of_a_table_have_one_learning_rate_and_one_clipping():
    for dataset, clip in (("mnist", None), ("cifar10", 5.0), ("cifar100", 5.0)):
        rows = table1.table(dataset=dataset, preset="laptop").rows
        assert {(row.config.lr, row.config.clip) for row in rows} == {(0.1, clip)}


def test_the_notes_name_the_networks_and_the_projection():
    assert "the paper's: cnn4-padded, 100 epochs" in table1.table(dataset="mnist", preset="laptop").notes[0]
    assert "the projection" in table1.table(dataset="cifar10", preset="laptop").notes[1]
    assert len(table1.table(dataset="cifar10", preset="paper").notes) == 1


@pytest.mark.parametrize("dataset", ["mnist", "cifar10"])
def test_figures_show_rows_that_exist_and_every_row_has_curves(dataset):
    table = table1.table(dataset=dataset)
    names = {row.key.removeprefix(table.prefix) for row in table.rows}
    made = table1_figures(table)
    assert {row for figure in made for row in figure.rows} == names
    assert len({figure.name for figure in made}) == len(made)
