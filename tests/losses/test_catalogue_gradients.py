"""Every catalogue entry: its gradients are those of its values, however they are computed."""

import dataclasses
import typing

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from tammes.losses import CATALOGUE, parse
from tammes.losses._engine.dense_statistics import dense
from tammes.losses._parameters import PerClassValue


def test_every_catalogue_entry_has_examples_of_every_option(examples):
    for kind in CATALOGUE:
        shown = [term for term in examples.values() if type(term) is kind]
        assert shown, kind
        for field in dataclasses.fields(kind):
            values = {getattr(term, field.name) for term in shown}
            if typing.get_origin(field.type) is typing.Literal:
                assert values == set(typing.get_args(field.type)), (kind, field.name)
            elif field.type is bool:
                assert values == {False, True}, (kind, field.name)
            elif field.type == PerClassValue:
                assert {type(value) for value in values} == {float, tuple}, (kind, field.name)
            elif field.name == "label_smoothing":
                assert {value > 0 for value in values} == {False, True}, kind


@pytest.mark.parametrize("kind", ["hard", "mixed"])
def test_gradcheck(exact_objective, way, kind, batch, label_kinds, loss_by):
    labels = label_kinds[kind](batch.labels)
    sample_weight = torch.linspace(0.5, 2, len(batch.labels), dtype=torch.float64).requires_grad_()

    def loss(z, w, sample_weight):
        return loss_by(way, exact_objective, z, w, labels, sample_weight=sample_weight)

    # A second backward computes again what the first read from a buffer, with other roundings.
    inputs = [batch.embeddings, batch.weight, sample_weight]
    assert gradcheck(loss, inputs, fast_mode=True, nondet_tol=1e-12)


def test_gradcheck_of_soft_targets(exact_soft_objective, batch, label_kinds):
    soft = label_kinds["soft"](batch.labels)

    def loss(*inputs):
        torch.default_generator.manual_seed(0)  # of random margins
        return exact_soft_objective(*inputs)

    assert gradcheck(loss, [batch.embeddings, batch.weight, soft], fast_mode=True)


def test_a_retained_graph_gives_the_same_gradients_again(objective, ways, batch, loss_by):
    for way in ways:
        loss = loss_by(way, objective, *batch).sum()
        first, second = (
            torch.autograd.grad(loss, batch[:2], retain_graph=True, allow_unused=True) for _ in range(2)
        )
        torch.testing.assert_close(first, second)


def test_the_dense_reference_can_be_differentiated_twice(batch, loss_by):
    objective = parse("ArcFace(s=4, m=0.3) + CE + LMSoftmax(s=5, reduction='lse') + 0.5*R_sm + 10*R_w")

    def loss(z, w):
        return loss_by(dense, objective, z, w, batch.labels)

    assert gradgradcheck(loss, [batch.embeddings, batch.weight], fast_mode=True)
