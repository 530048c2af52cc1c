"""What all presets that stand for the paper's own runs have in common."""

import pytest

from tammes.lab.recipes import table1, table2, table3, table4, table7

ROWS = {
    "table1 mnist": table1.table(dataset="mnist", preset="paper").rows,
    "table1 cifar10": table1.table(dataset="cifar10", preset="paper").rows,
    "table1 cifar100": table1.table(dataset="cifar100", preset="paper").rows,
    "table2 cifar10": table2.table(dataset="cifar10", imbalance="long_tailed:100", preset="paper").rows,
    "table2 cifar100": table2.table(dataset="cifar100", imbalance="step:100", preset="paper").rows,
    "table3": table3.table(preset="paper").rows,
    "table4": table4.table(preset="paper").rows,
    "table7": table7.table(preset="paper").rows,
}


@pytest.mark.parametrize("name", ROWS)
def test_no_paper_preset_projects_the_prototypes_and_all_decay_them_like_the_network(name):
    for row in ROWS[name]:
        assert row.config.unit_prototypes is False, row.key
        if row.config.start is None:
            assert row.config.prototype_weight_decay == row.config.weight_decay, row.key


@pytest.mark.parametrize("name", [name for name in ROWS if name.startswith(("table1", "table2"))])
def test_where_the_text_is_silent_the_authors_public_code_decides(name):
    for row in ROWS[name]:
        assert (row.config.clip, row.config.augment_style) == (5.0, "standard")


def test_people_start_from_the_weights_that_the_baseline_used():
    assert {row.config.model for row in ROWS["table3"]} == {"timm/resnet50.tv_in1k"}
