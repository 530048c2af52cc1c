import copy

import numpy as np
import pytest
import torch
from torch import nn

from tammes import MixedLabels, PrototypeHead, parse
from tammes.heads import RowSGD
from tammes.heads.sampled import ClassSampler, coalesce_gradient
from tammes.losses import CATALOGUE, LDAM, ArcFace, CosFace, NormFace, ldam_margins

K, D, N = 61, 5, 9
pytestmark = pytest.mark.filterwarnings("ignore:.*classes:UserWarning")

OBJECTIVES = [
    "CE",
    "CE(label_smoothing=0.1)",
    "Focal(gamma=2)",
    "LSoftmax(m=2)",
    "NormFace(s=8)",
    "CosFace(s=8, m=0.2, label_smoothing=0.1)",
    "ArcFace(s=8, m=0.3)",
    "SphereFace(s=8, m=1.5)",
    "CombinedMargin(s=8, m1=1.1, m2=0.2, m3=0.1)",
    "GMSoftmax(s=8, alpha1=1.0, beta1=-0.1)",
    "LMSoftmax(s=8)",
    'LMSoftmax(s=8, reduction="lse")',
    "R_sm",
    'R_sm(form="mean")',
    "MHE",
    "CE + 0.5*NormFace(s=8) + CosFace(s=4, m=0.1) + R_sm",
]


def batch(seed=0, n=N, k=K):
    torch.manual_seed(seed)
    return torch.randn(n, D, dtype=torch.float64), torch.randint(k, (n,))


def head_of(objective, rate=0.2, **options):
    torch.manual_seed(7)
    objective = parse(objective) if isinstance(objective, str) else objective
    return PrototypeHead(D, K, objective, sample_rate=rate, dtype=torch.float64, **options)


def sample_of(head):
    """The classes of the last step, which are the rows of its gradient."""
    return head.weight.grad.indices()[0]


def over_the_sample(objective, head, z, labels, classes, **options):
    """The dense loss, as if the sampled classes were all there are, with gradients of z and of their rows."""
    rows = head.weight.detach()[classes].requires_grad_()
    z = z.clone().requires_grad_()
    places = torch.full((K,), -1).scatter(0, classes, torch.arange(len(classes)))
    if isinstance(labels, MixedLabels):
        moved = MixedLabels(places[labels.a], places[labels.b], labels.lam)
    else:
        moved = torch.where(labels == -100, -100, places[labels.clamp(min=0)])
    loss = objective(z, rows, moved, **options)
    return loss.detach(), *torch.autograd.grad(loss, (z, rows), allow_unused=True, materialize_grads=True)


def assert_same_as_over_the_sample(head, z, labels, objective=None, sample_weight=None, **options):
    z.requires_grad_()
    loss = head(z, labels, sample_weight=sample_weight)
    loss.backward()
    classes = sample_of(head)
    expected, of_z, of_rows = over_the_sample(
        objective or head.objective,
        head,
        z.detach(),
        labels,
        classes,
        sample_weight=sample_weight,
        **{name: table[classes] for name, table in options.items()},
    )
    torch.testing.assert_close(loss.detach(), expected)
    torch.testing.assert_close(torch.zeros_like(z) if z.grad is None else z.grad, of_z)
    torch.testing.assert_close(head.weight.grad.values(), of_rows)


def test_the_objectives_tested_here_are_the_catalogue_but_for_the_centroid():
    elsewhere = {"R_w", "LDAM", "LAS"}
    here = {type(term) for text in OBJECTIVES for _, term in parse(text).terms}
    assert here == {term for term in CATALOGUE if term.text_name not in elsewhere}


@pytest.mark.parametrize("text", OBJECTIVES)
@pytest.mark.parametrize("block_size", [None, 4])
def test_loss_and_gradients_are_those_of_a_head_that_has_the_sampled_classes_only(text, block_size):
    head = head_of(text, block_size=block_size)
    assert_same_as_over_the_sample(head, *batch())
    assert N < head.weight.grad._nnz() < K


@pytest.mark.parametrize("text", ["ArcFace(s=8, m=0.3) + R_sm", "CosFace(s=8, m=0.2, label_smoothing=0.1)"])
def test_mixed_labels_are_both_in_the_sample(text):
    z, a = batch()
    b = torch.randint(K, (N,))
    head = head_of(text)
    assert_same_as_over_the_sample(head, z, MixedLabels(a, b, torch.rand(N)))
    assert torch.isin(torch.cat([a, b]), sample_of(head)).all()


def test_a_mixed_row_with_one_ignored_label_puts_neither_in_the_sample():
    head = head_of("NormFace(s=8)", rate=1e-9)
    labels = MixedLabels(torch.tensor([10, 20]), torch.tensor([30, -100]), 0.5)
    head(batch()[0][:2], labels).backward()
    assert len(sample_of(head)) == 3
    assert torch.isin(torch.tensor([10, 30]), sample_of(head)).all()


def test_margins_per_class_and_class_weights_follow_their_classes_into_the_sample():
    z, labels = batch()
    margins, counts, weights = (torch.rand(3, K) * 0.4 + 0.1).double()
    arcface = ArcFace(scale=8, margin=tuple(margins.tolist()))
    head = head_of(arcface + LDAM(scale=8), class_counts=counts, class_weight=weights)
    classes = head.sampler.draw(labels.unique(), K)
    head.sampler.draws = 0

    def within(values):
        return tuple(torch.as_tensor(values)[classes].tolist())

    ldam = within(torch.tensor(ldam_margins(counts.tolist()), dtype=torch.float64))
    same = ArcFace(scale=8, margin=within(margins)) + CosFace(scale=8, margin=ldam)
    assert_same_as_over_the_sample(
        head, z, labels, same, class_weight=weights, sample_weight=torch.rand(N, dtype=torch.float64)
    )


def test_ignored_rows_count_for_nothing_and_put_no_class_in_the_sample():
    z, labels = batch()
    labels = torch.where(labels == 0, 1, labels)
    labels[[2, 5]] = -100
    head = head_of("CosFace(s=8, m=0.2)", rate=1e-9)
    assert_same_as_over_the_sample(head, z, labels)
    present = labels[labels >= 0].unique()
    assert len(sample_of(head)) == len(present) + 1
    assert torch.isin(present, sample_of(head)).all()

    head.weight.grad = None
    assert head(z, torch.full((N,), -100)).item() == 0


def test_accuracy_and_rivals_are_told_under_the_names_of_all_classes():
    head = head_of("CosFace(s=8, m=0.2)")
    labels = torch.arange(40, 40 + N)
    head(head.weight.detach()[labels], labels)
    assert head.terms["accuracy"] == 1
    head(-head.weight.detach()[labels], labels)
    assert head.terms["accuracy"] == 0

    twins = torch.tensor([40, 50])
    head.weight.data[50] = head.weight.data[40]
    head(head.weight.detach()[twins], twins)
    assert head.terms["accuracy"] == 0.5, "of two classes that tie the lower one wins"


@pytest.mark.parametrize(
    "text", ["R_w", "R_w(normalize=False)", "NormFace(s=8) + R_w + R_w(normalize=False)"]
)
def test_the_centroid_is_that_of_all_classes_while_rows_move_and_gradients_accumulate(text):
    head = head_of(text)
    optimizer = RowSGD([head.weight], lr=0.5, momentum=0.9)
    for step in range(12):
        z, labels = batch(step)
        loss = head(z, labels)
        loss.backward()
        for name in head.terms.keys() & {"R_w", "R_w(normalize=False)"}:
            expected = parse(name)(z, head.weight.detach(), labels)
            torch.testing.assert_close(head.terms[name], expected, rtol=1e-12, atol=1e-15)
        if step % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()


def test_the_centroid_pulls_the_sampled_rows_as_if_all_were_there():
    head = head_of("R_w + NormFace(s=8)")
    z, labels = batch()
    head(z, labels).backward()
    classes, of_rows = sample_of(head), head.weight.grad.values()
    weight = head.weight.detach().requires_grad_()
    (whole,) = torch.autograd.grad(parse("R_w")(z, weight, labels), weight)
    _, _, of_normface = over_the_sample(NormFace(scale=8), head, z, labels, classes)
    torch.testing.assert_close(of_rows, whole[classes] + of_normface)


@pytest.mark.parametrize("how", ["load", "assign", "reset", "copy"])
def test_the_centroid_is_summed_again_when_all_prototypes_are_others(how):
    head, other = head_of("R_w"), head_of("R_w")
    other.reset_parameters()
    z, labels = batch()
    head(z, labels)
    changed = copy.deepcopy(head) if how == "copy" else head
    if how == "copy":
        with torch.no_grad():
            changed.weight.copy_(other.weight)
    elif how == "reset":
        changed.reset_parameters()
    else:
        changed.load_state_dict(other.state_dict(), assign=how == "assign")
    torch.testing.assert_close(changed(z, labels), parse("R_w")(z, changed.weight.detach(), labels))


def test_evaluation_uses_all_classes():
    text = "CosFace(s=8, m=0.2) + R_sm + R_w + MHE"
    sampled, plain = head_of(text), head_of(text, rate=None)
    plain.weight.data.copy_(sampled.weight.data)
    z, labels = batch()
    assert sampled(z, labels) != plain(z, labels)
    sampled.eval()
    assert sampled(z, labels) == plain(z, labels)
    assert torch.equal(sampled(z), plain(z))
    assert torch.equal(sampled.predict(z, top=3), plain.predict(z, top=3))


@pytest.mark.parametrize("block_size", [None, "auto"])
def test_at_rate_one_it_is_the_head_without_sampling(block_size):
    text = "CosFace(s=8, m=0.2, label_smoothing=0.1) + R_sm + R_w + MHE"
    sampled, plain = head_of(text, 1.0, block_size=block_size), head_of(text, None, block_size=block_size)
    plain.weight.data.copy_(sampled.weight.data)
    z, labels = batch()
    losses = [head(z, labels) for head in (sampled, plain)]
    for loss in losses:
        loss.backward()
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(sampled.weight.grad.to_dense(), plain.weight.grad)


def test_the_gradient_is_sparse_and_coalesced_also_when_two_batches_accumulate():
    head, twin = head_of("NormFace(s=8)"), head_of("NormFace(s=8)")
    parts = []
    for seed in (1, 2):
        z, labels = batch(seed)
        head(z, labels).backward()
        assert head.weight.grad.is_coalesced()
        twin.weight.grad = None
        twin(z, labels).backward()
        parts.append(twin.weight.grad.to_dense())
    torch.testing.assert_close(head.weight.grad.to_dense(), parts[0] + parts[1])
    assert head.weight.grad._nnz() == (parts[0] + parts[1]).any(1).sum()


def test_a_gradient_that_a_device_appended_to_another_is_coalesced():
    weight = nn.Parameter(torch.zeros(5, 2))
    rows, values = torch.tensor([[3, 1, 3]]), torch.tensor([[1.0, 2], [3, 4], [5, 6]])
    weight.grad = torch.sparse_coo_tensor(rows, values, (5, 2), check_invariants=True)
    coalesce_gradient(weight)
    assert weight.grad.indices().tolist() == [[1, 3]]
    assert weight.grad.values().tolist() == [[3, 4], [6, 8]]


def test_half_precision_prototypes_get_half_precision_gradients_of_exact_sums():
    head = head_of("CosFace(s=8, m=0.2)").to(torch.bfloat16)
    z, labels = batch()
    loss = head(z.float(), labels)
    loss.backward()
    assert loss.dtype == torch.float32
    assert head.weight.grad.dtype == torch.bfloat16
    expected, _, of_rows = over_the_sample(head.objective, head.double(), z, labels, sample_of(head))
    torch.testing.assert_close(loss.detach().double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(head.weight.grad.values(), of_rows, rtol=1e-2, atol=1e-2)


def train(head, optimizer, steps):
    losses = []
    for step in steps:
        z, labels = batch(step)
        optimizer.zero_grad()
        loss = head(z, labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_a_resumed_run_draws_and_learns_what_an_uninterrupted_one_does():
    head = head_of("CosFace(s=8, m=0.2) + R_w")
    optimizer = RowSGD([head.weight], lr=0.1, momentum=0.9)
    train(head, optimizer, range(4))
    saved = copy.deepcopy((head.state_dict(), optimizer.state_dict()))
    straight = train(head, optimizer, range(4, 8))

    torch.manual_seed(123)
    resumed = PrototypeHead(D, K, head.objective, sample_rate=0.2, dtype=torch.float64)
    optimizer = RowSGD([resumed.weight], lr=0.1, momentum=0.9)
    resumed.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    assert train(resumed, optimizer, range(4, 8)) == pytest.approx(straight, rel=1e-13)
    assert torch.equal(
        resumed.state_dict()["sampler._extra_state"], head.state_dict()["sampler._extra_state"]
    )


def test_a_checkpoint_of_a_head_that_did_not_sample_can_be_sampled_on():
    plain, sampled = head_of("NormFace(s=8)", None), head_of("NormFace(s=8)")
    seed = sampled.sampler.seed
    sampled.load_state_dict(plain.state_dict())
    assert torch.equal(sampled.weight, plain.weight)
    assert sampled.sampler.seed == seed


def test_prototypes_learn_their_classes_from_samples():
    torch.manual_seed(0)
    k, d = 150, 16
    centres = nn.functional.normalize(torch.randn(k, d), dim=1)
    head = PrototypeHead(d, k, NormFace(scale=16), sample_rate=0.1)
    optimizer = RowSGD(head.param_groups(), lr=1.0, momentum=0.9)
    for _ in range(150):
        labels = torch.randint(k, (32,))
        optimizer.zero_grad()
        head(centres[labels] + 0.1 * torch.randn(32, d), labels).backward()
        optimizer.step()
    assert (head.predict(centres) == torch.arange(k)).float().mean() > 0.97


def sampler_of(rate):
    torch.manual_seed(5)
    return ClassSampler(rate, nn.Parameter(torch.zeros(2, 2)))


@pytest.mark.parametrize(
    ("rate", "positives", "k", "others"),
    [(0.3, [2, 3, 11], 13, 3), (1.0, [0], 7, 6), (1e-6, [4], 9, 1), (0.5, [0, 1, 2], 3, 0), (0.2, [], 20, 4)],
)
def test_a_draw_has_every_positive_and_the_share_of_the_others_in_order(rate, positives, k, others):
    sampler = sampler_of(rate)
    for _ in range(20):
        classes = sampler.draw(torch.tensor(positives, dtype=torch.long), k).tolist()
        assert classes == sorted(set(classes))
        assert set(positives) <= set(classes) <= set(range(k))
        assert len(classes) == len(positives) + others


def test_every_set_of_others_is_equally_likely():
    sampler, positives = sampler_of(0.3), torch.tensor([2, 3, 11])
    draws, others = 3000, 10
    together = np.zeros((13, 13))
    for _ in range(draws):
        classes = sampler.draw(positives, 13).numpy()
        together[np.ix_(classes, classes)] += 1
    rest = np.setdiff1d(np.arange(13), positives)
    single = np.diag(together)[rest]
    pairs = together[np.ix_(rest, rest)][np.triu_indices(others, 1)]
    for counts, share in ((single, 3 / others), (pairs, 3 * 2 / (others * (others - 1)))):
        error = (counts - draws * share) / np.sqrt(draws * share * (1 - share))
        assert np.abs(error).max() < 4.5


def test_draws_differ_from_step_to_step_and_from_stream_to_stream():
    sampler, none = sampler_of(0.1), torch.empty(0, dtype=torch.long)
    first, second = sampler.draw(none, 1000), sampler.draw(none, 1000)
    sampler.draws = 0
    again, elsewhere = sampler.draw(none, 1000), sampler.draw(none, 1000, stream=1)
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert not torch.equal(second, elsewhere)


def test_a_draw_never_lists_all_classes():
    classes = sampler_of(1e-9).draw(torch.tensor([3, 10**11]), 10**12)
    assert len(classes) == 1002


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.5, float("nan")])
def test_a_rate_outside_0_to_1_is_refused(rate):
    with pytest.raises(ValueError, match="sample_rate must"):
        head_of("CE", rate)


def test_soft_targets_are_refused_in_training_only():
    head = head_of("CE")
    z, _ = batch()
    with pytest.raises(ValueError, match="Soft targets make every class a target"):
        head(z, torch.full((N, K), 1 / K))
    assert head.eval()(z, torch.full((N, K), 1 / K)).isfinite()


def test_labels_out_of_range_are_refused_before_anything_is_drawn():
    head = head_of("CE")
    with pytest.raises(ValueError, match=r"labels must lie in \[0, 61\)"):
        head(batch()[0], torch.full((N,), K))
    assert head.sampler.draws == 0


def test_a_foreign_sampler_state_is_refused():
    head = head_of("CE")
    state = head.state_dict() | {"sampler._extra_state": torch.zeros(3)}
    with pytest.raises(ValueError, match="a seed and a number of draws"):
        head.load_state_dict(state)
