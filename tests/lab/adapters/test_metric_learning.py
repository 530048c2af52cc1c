"""`MetricLoss` beside pytorch-metric-learning's own losses, with its miners, reducers and trainers."""

import math

import pytest
import torch
from torch.utils.data import TensorDataset

from tammes import PrototypeHead
from tammes.lab.adapters import MetricLoss

theirs = pytest.importorskip("pytorch_metric_learning.losses")
miners = pytest.importorskip("pytorch_metric_learning.miners")

D, K, N = 8, 4, 24


@pytest.fixture
def batch():
    torch.manual_seed(0)
    return torch.randn(N, D, dtype=torch.float64, requires_grad=True), torch.arange(N) % K


def pair(objective="ArcFace(s=16, m=0.5)"):
    """Their ArcFace, and ours with its prototypes."""
    their = theirs.ArcFaceLoss(K, D, margin=math.degrees(0.5), scale=16).double()
    ours = MetricLoss(PrototypeHead(D, K, objective, dtype=torch.float64))
    with torch.no_grad():
        ours.head.weight.copy_(their.W.T)
    return their, ours


@pytest.mark.parametrize(
    "miner",
    [
        lambda z, y: None,
        miners.BatchHardMiner(),
        miners.MultiSimilarityMiner(epsilon=0.5),
        miners.TripletMarginMiner(margin=100.0, type_of_triplets="easy"),  # finds nothing
    ],
    ids=["none", "triplets", "pairs", "nothing"],
)
def test_a_miners_tuple_weighs_as_it_does_there(miner, batch):
    z, y = batch
    their, ours = pair()
    found = miner(z.detach(), y)
    values = [loss(z, y, found) for loss in (their, ours)]
    gradients = [torch.autograd.grad(value, z)[0] for value in values]
    assert values[1].item() == pytest.approx(values[0].item(), abs=1e-5)
    torch.testing.assert_close(gradients[1], gradients[0], atol=1e-5, rtol=1e-5)


def test_prototype_terms_are_not_weighted(batch):
    z, y = batch
    _, plain = pair()
    _, more = pair("ArcFace(s=16, m=0.5) + 10*R_w")
    with torch.no_grad():
        more.head.weight.copy_(plain.head.weight)
    found = miners.BatchHardMiner()(z.detach(), y)
    r_w = torch.nn.functional.normalize(plain.head.weight).mean(0).square().sum()
    assert (more(z, y, found) - plain(z, y, found)).item() == pytest.approx(10 * r_w.item())


def test_logits_are_theirs(batch):
    z, _ = batch
    their, ours = pair()
    torch.testing.assert_close(ours.get_logits(z), their.get_logits(z))


@pytest.mark.parametrize(
    ("more", "wording"),
    [({"ref_emb": torch.ones(2, D)}, "takes no ref_emb"), ({"labels": None}, "needs labels")],
    ids=["references", "labels"],
)
def test_what_has_no_meaning_is_refused(more, wording, batch):
    z, y = batch
    with pytest.raises(ValueError, match=wording):
        pair()[1](**{"embeddings": z, "labels": y} | more)


def test_a_trainer_of_version_2_takes_it():
    trainers = pytest.importorskip(
        "pytorch_metric_learning.trainers", reason="version 3 of pytorch-metric-learning has no trainers"
    )
    torch.manual_seed(0)
    labels = torch.arange(60) % K
    data = TensorDataset(torch.randn(60, 6) + 3 * torch.eye(6)[labels], labels)
    trunk, loss = torch.nn.Linear(6, D), MetricLoss(PrototypeHead(D, K, "ArcFace(s=8, m=0.2) + 0.5*R_sm"))
    before = loss(trunk(data.tensors[0]), labels).item()
    trainer = trainers.MetricLossOnly(
        models={"trunk": trunk},
        optimizers={
            "trunk_optimizer": torch.optim.Adam(trunk.parameters(), lr=0.05),
            "metric_loss_optimizer": torch.optim.Adam(loss.parameters(), lr=0.05),
        },
        batch_size=20,
        loss_funcs={"metric_loss": loss},
        mining_funcs={"tuple_miner": miners.BatchHardMiner()},
        dataset=data,
        dataloader_num_workers=0,
        data_device="cpu",
    )
    trainer.train(num_epochs=2)
    assert loss(trunk(data.tensors[0]), labels).item() < before
