import copy
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tammes import MixedLabels, PrototypeHead, parse
from tammes.heads import RowSGD
from tammes.heads._sampled import ClassSampler, coalesce_gradient, random_keys
from tammes.losses import CATALOGUE, LDAM, ArcFace, CosFace, NormFace, ZeroCentroid, ldam_margins

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
    "AdaFace(s=8)",
    "MagFace(s=8, low_norm=1, high_norm=4)",
    "ElasticFace(s=8, std=0)",
    "CurricularFace(s=8)",
    "MVSoftmax(s=8)",
    "Circle(s=8)",
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


def test_the_objectives_cover_the_catalogue_except_the_centroid():
    elsewhere = {"AdaCos", "R_w", "LDAM", "LAS", "BalancedSoftmax", "LogitAdjusted", "VS"}
    here = {type(term) for text in OBJECTIVES for _, term in parse(text).weighted_terms}
    assert here == {term for term in CATALOGUE if term.text_name not in elsewhere}


@pytest.mark.parametrize("text", OBJECTIVES)
@pytest.mark.parametrize("block_size", [None, 4])
def test_loss_and_gradients_equal_those_of_a_head_with_only_the_sampled_classes(text, block_size):
    head = head_of(text, block_size=block_size)
    assert_same_as_over_the_sample(head, *batch())
    assert N < head.weight.grad._nnz() < K


@pytest.mark.parametrize(
    "text", ["ArcFace(s=8, m=0.3) + R_sm", "CosFace(s=8, m=0.2, label_smoothing=0.1)", "CurricularFace(s=8)"]
)
def test_mixed_labels_are_both_in_the_sample(text):
    z, a = batch()
    b = torch.randint(K, (N,))
    head = head_of(text)
    assert_same_as_over_the_sample(head, z, MixedLabels(a, b, torch.rand(N)))
    assert torch.isin(torch.cat([a, b]), sample_of(head)).all()


def test_a_mixed_row_with_an_ignored_label_adds_no_class_to_the_sample():
    head = head_of("NormFace(s=8)", rate=1e-9)
    labels = MixedLabels(torch.tensor([10, 20]), torch.tensor([30, -100]), 0.5)
    head(batch()[0][:2], labels).backward()
    assert len(sample_of(head)) == 3
    assert torch.isin(torch.tensor([10, 30]), sample_of(head)).all()


def test_per_class_margins_and_weights_match_the_sampled_classes():
    z, labels = batch()
    margins, counts, weights = (torch.rand(3, K) * 0.4 + 0.1).double()
    counts[labels[0]] = 1  # VS reads the largest count
    arcface = ArcFace(scale=8, margin=tuple(margins.tolist()))
    by_prior = parse("BalancedSoftmax + LogitAdjusted(tau=2, normalize=True, s=8) + VS")
    head = head_of(arcface + LDAM(scale=8) + by_prior, class_counts=counts, class_weight=weights)
    classes = head.sampler.draw(labels.unique(), K)
    head.sampler.draws = 0

    def within(values):
        return tuple(torch.as_tensor(values)[classes].tolist())

    ldam = within(torch.tensor(ldam_margins(counts.tolist()), dtype=torch.float64))
    same = ArcFace(scale=8, margin=within(margins)) + CosFace(scale=8, margin=ldam) + by_prior
    assert_same_as_over_the_sample(
        head,
        z,
        labels,
        same,
        class_weight=weights,
        class_counts=counts,
        sample_weight=torch.rand(N, dtype=torch.float64),
    )


@pytest.mark.parametrize("block_size", [None, 4])
def test_smoothing_weighs_the_sampled_classes_only(block_size):
    z, labels = batch()
    labels[2] = -100
    weights = torch.rand(K, dtype=torch.float64)
    text = "CosFace(s=8, m=0.2, label_smoothing=0.3) + CE(label_smoothing=0.1)"
    head = head_of(text, class_weight=weights, block_size=block_size)
    assert_same_as_over_the_sample(head, z, labels, class_weight=weights)
    head.weight.grad = None
    mixed = MixedLabels(batch()[1], batch()[1].roll(1), torch.rand(N))
    assert_same_as_over_the_sample(head, batch()[0], mixed, class_weight=weights)


def test_ignored_rows_do_not_count_and_add_no_class_to_the_sample():
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


def test_accuracy_and_rivals_use_indices_of_all_classes():
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
        for name, (_, term) in zip(head.terms, head.objective.weighted_terms, strict=False):
            if isinstance(term, ZeroCentroid):
                expected = term(z, head.weight.detach(), labels)
                torch.testing.assert_close(head.terms[name], expected, rtol=1e-12, atol=1e-15)
        if step % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()


def test_the_centroid_gradient_of_sampled_rows_equals_the_unsampled_one():
    head = head_of("R_w + NormFace(s=8)")
    z, labels = batch()
    head(z, labels).backward()
    classes, of_rows = sample_of(head), head.weight.grad.values()
    weight = head.weight.detach().requires_grad_()
    (whole,) = torch.autograd.grad(parse("R_w")(z, weight, labels), weight)
    _, _, of_normface = over_the_sample(NormFace(scale=8), head, z, labels, classes)
    torch.testing.assert_close(of_rows, whole[classes] + of_normface)


@pytest.mark.parametrize("how", ["load", "assign", "reset", "copy"])
def test_the_centroid_is_recomputed_when_all_prototypes_change(how):
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
def test_rate_one_equals_a_head_without_sampling(block_size):
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


def test_the_centroid_does_not_drift_when_all_rows_are_projected_behind_the_optimizer():
    """In float32, where dividing a unit vector by its norm moves its last digits."""
    head = head_of("NormFace(s=8) + R_w").float()
    optimizer = RowSGD([head.weight], lr=0.5, momentum=0.9)
    for step in range(200):
        z, labels = batch(step)
        optimizer.zero_grad()
        head(z.float(), labels).backward()
        if step % 10 == 0:  # bit for bit: a sum that was only updated would differ at once
            fresh = copy.deepcopy(head)
            fresh(z.float(), labels)
            assert head.terms["ZeroCentroid"] == fresh.terms["ZeroCentroid"]
        optimizer.step()
        head.weight.data.div_(head.weight.data.norm(dim=1, keepdim=True))  # .data: no version counts this
    z, labels = batch()
    head(z.float(), labels)
    exact = parse("R_w")(z, head.weight.detach().double(), labels)
    torch.testing.assert_close(head.terms["ZeroCentroid"].double(), exact, rtol=1e-5, atol=1e-12)


def train(head, optimizer, steps):
    losses = []
    for step in steps:
        z, labels = batch(step)
        optimizer.zero_grad()
        loss = head(z, labels)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            head.weight.div_(head.weight.norm(dim=1, keepdim=True))  # as training projects
        losses.append(loss.item())
    return losses


def test_a_resumed_run_equals_an_uninterrupted_one():
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
    assert train(resumed, optimizer, range(4, 8)) == straight
    assert torch.equal(resumed.weight, head.weight)
    assert torch.equal(
        resumed.state_dict()["sampler._extra_state"], head.state_dict()["sampler._extra_state"]
    )


def test_a_sampled_head_loads_a_checkpoint_of_an_unsampled_one():
    plain, sampled = head_of("NormFace(s=8)", None), head_of("NormFace(s=8)")
    seed = sampled.sampler.seed
    sampled.load_state_dict(plain.state_dict())
    assert torch.equal(sampled.weight, plain.weight)
    assert sampled.sampler.seed == seed


def test_prototypes_learn_their_classes_from_samples():
    torch.manual_seed(0)
    k, d = 150, 16
    centers = nn.functional.normalize(torch.randn(k, d), dim=1)
    head = PrototypeHead(d, k, NormFace(scale=16), sample_rate=0.1)
    optimizer = RowSGD(head.param_groups(), lr=1.0, momentum=0.9)
    for _ in range(150):
        labels = torch.randint(k, (32,))
        optimizer.zero_grad()
        head(centers[labels] + 0.1 * torch.randn(32, d), labels).backward()
        optimizer.step()
    assert (head.predict(centers) == torch.arange(k)).float().mean() > 0.97


def sampler_of(rate):
    torch.manual_seed(5)
    return ClassSampler(rate, nn.Parameter(torch.zeros(2, 2)))


@pytest.mark.parametrize(
    ("rate", "positives", "k", "others"),
    [(0.3, [2, 3, 11], 13, 3), (1.0, [0], 7, 6), (1e-6, [4], 9, 1), (0.5, [0, 1, 2], 3, 0), (0.2, [], 20, 4)],
)
def test_a_sample_has_all_positives_and_a_fraction_of_the_others_sorted(rate, positives, k, others):
    sampler = sampler_of(rate)
    for _ in range(20):
        classes = sampler.draw(torch.tensor(positives, dtype=torch.long), k).tolist()
        assert classes == sorted(set(classes))
        assert set(positives) <= set(classes) <= set(range(k))
        assert len(classes) == len(positives) + others


@pytest.mark.parametrize(
    ("rate", "labels", "k", "count"),
    [
        (0.3, [2, 3, 11, 3], 14, 7),
        (1.0, [0], 7, 7),
        (1e-6, [4], 9, 2),
        (0.5, [0, 1, 2, 2], 3, 3),
        (0.2, [], 20, 4),
    ],
)
def test_a_sample_on_a_device_has_all_labels_that_count_and_a_size_of_its_shapes(rate, labels, k, count):
    sampler, labels = sampler_of(rate), torch.tensor([*labels, -100], dtype=torch.long)
    kept = labels >= 0
    samples = [sampler.draw_on_device(labels, kept, k).tolist() for _ in range(20)]
    for classes in samples:
        assert classes == sorted(set(classes))
        assert set(labels[kept].tolist()) <= set(classes) <= set(range(k))
        assert len(classes) == len(samples[0]) >= count
    sampler.draws = 0
    sampler._numbers.clear()
    assert sampler.draw_on_device(labels, kept, k).tolist() == samples[0]


@pytest.mark.parametrize("labels", [[4], [4, 5]])
def test_a_sample_on_a_device_has_another_class_than_the_labels(labels):
    labels = torch.tensor(labels)
    assert len(sampler_of(1e-6).draw_on_device(labels, labels >= 0, 9)) == len(labels) + 1


def test_keys_are_those_of_splitmix64():
    # The first outputs of the reference implementation for the seed 1234567.
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    start = 1234567 + 0x9E3779B97F4A7C15 - 2**64
    keys = random_keys(4, start, torch.device("cpu"))
    assert keys.tolist() == [value % 2**63 for value in expected]


@pytest.mark.parametrize("on_device", [False, True])
def test_all_subsets_of_the_others_are_equally_likely(on_device):
    sampler, positives = sampler_of(0.3), torch.tensor([2, 3, 11])
    draws, others = 3000, 10
    together = np.zeros((13, 13))
    for _ in range(draws):
        if on_device:
            classes = sampler.draw_on_device(positives, torch.ones(3, dtype=torch.bool), 13).numpy()
        else:
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


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_repeats_the_sample_and_the_next_step_draws_a_new_one(reentrant):
    head, (z, labels) = head_of("CosFace(s=8, m=0.2)"), batch()
    z.requires_grad_()
    samples = []
    for step in range(3):
        head.weight.grad = None
        expected = head.sampler.draw(labels.unique(), K)
        head.sampler.draws = step
        checkpoint(head, z, labels, use_reentrant=reentrant).backward()
        assert sample_of(head).equal(expected)
        samples.append(expected)
    assert not samples[0].equal(samples[1])
    assert not samples[1].equal(samples[2])


def test_checkpointed_micro_batches_have_their_own_samples():
    head, (z, labels) = head_of("CosFace(s=8, m=0.2)"), batch()
    z.requires_grad_()
    parts = list(zip(z.split(3), labels.split(3), strict=True))
    losses = [checkpoint(head, *part, use_reentrant=False) for part in parts]
    assert head.sampler.draws == 3
    found = torch.autograd.grad(sum(losses), z)[0]
    head.sampler.draws = 0
    expected = torch.autograd.grad(sum(head(*part) for part in parts), z)[0]
    torch.testing.assert_close(found, expected)


def test_seeding_torch_before_every_step_does_not_repeat_the_sample():
    head = head_of("NormFace(s=8)")
    optimizer, samples = RowSGD([head.weight], lr=0.1), []
    for _ in range(2):
        optimizer.zero_grad()
        head(*batch(seed=3)).backward()
        samples.append(sample_of(head))
        optimizer.step()
    assert not samples[0].equal(samples[1])


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_without_random_state_is_refused(reentrant):
    head, (z, labels) = head_of("NormFace(s=8)"), batch()
    loss = checkpoint(head, z.requires_grad_(), labels, use_reentrant=reentrant, preserve_rng_state=False)
    with pytest.raises(RuntimeError, match="preserve_rng_state=True"):
        loss.backward()


@pytest.fixture
def eager_switching():
    """Threads take turns a thousand times as often as usual, so that races show."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("eager_switching")
def test_threads_draw_distinct_samples():
    sampler, none, rounds = sampler_of(0.1), torch.empty(0, dtype=torch.long), 100
    with ThreadPoolExecutor(4) as threads:
        samples = list(threads.map(lambda _: sampler.draw(none, 1000), range(4 * rounds)))
    assert sampler.draws == 4 * rounds
    assert len({tuple(sample.tolist()) for sample in samples}) == 4 * rounds


@pytest.mark.parametrize("text", ["NormFace(s=8)", 'R_sm(form="mean")', "LAS", "MHE"])
def test_a_batch_without_labels_still_has_two_classes_to_compare(text):
    head = head_of(text, rate=1e-9, class_counts=list(range(1, K + 1)))
    z = batch()[0].requires_grad_()
    head(z, torch.full((N,), -100)).backward()
    assert len(sample_of(head)) == 2
    assert head.weight.grad.values().isfinite().all()
    assert z.grad is None or z.grad.isfinite().all()


@pytest.mark.parametrize("copy_of", [copy.deepcopy, lambda head: pickle.loads(pickle.dumps(head))])
def test_the_gradient_of_a_copy_is_coalesced_too(copy_of):
    head = copy_of(head_of("NormFace(s=8)"))
    for seed in range(2):
        head(*batch(seed)).backward()
    assert head.weight.grad.is_coalesced()
