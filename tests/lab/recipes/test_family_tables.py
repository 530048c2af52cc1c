"""The tables of losses beyond the paper: what is trained, and with the settings of which of its tables."""

import dataclasses

from tammes.lab.recipes import facelosses, longtail, table2, table4
from tammes.losses import parse


def test_the_long_tailed_table_shares_the_settings_of_table_2():
    reference = next(row.config for row in table2.table().rows if row.key.endswith("-ce"))
    rows = {row.key: row for row in longtail.table().rows}
    assert rows["ce"].config == reference
    kinds = {type(parse(row.config.objective).weighted_terms[0][1]).__name__ for row in rows.values()}
    assert kinds == {"CrossEntropy", "BalancedSoftmax", "LogitAdjusted", "VectorScaling", "LDAM", "LMSoftmax"}
    assert {row.versus for key, row in rows.items() if key != "ce"} == {"ce"}


def test_the_face_table_shares_the_settings_of_table_4():
    reference = next(row.config for row in table4.table().rows if row.key == "laptop-arcface")
    rows = {row.key: row for row in facelosses.table().rows}
    assert rows["arcface"].config == reference
    kinds = {type(parse(row.config.objective)).__name__ for row in rows.values()}
    assert kinds == {"ArcFace", "AdaFace", "MagFace", "CurricularFace"}
    assert rows["subcenters"].config == dataclasses.replace(reference, centers=3)
    assert {row.versus for key, row in rows.items() if key != "arcface"} == {"arcface"}
