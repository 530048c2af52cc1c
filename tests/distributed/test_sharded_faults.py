"""A failure on one rank raises on every rank and never hangs."""

import os
import time

import pytest
import torch
import torch.distributed as dist

from tammes import parse
from tammes.heads import ShardedPrototypeHead
from tammes.losses import MixedLabels

K, D = 7, 4


def head_of(rank, text="CosFace(s=8, m=0.2)", num_classes=K, in_features=D, **options):
    torch.manual_seed(0)
    return ShardedPrototypeHead(in_features, num_classes, parse(text), **options)


def good(n=3):
    return torch.randn(n, D), torch.arange(n)


def label_out_of_range(rank):
    z, labels = good()
    labels[1] = K if rank == 1 else 1
    head_of(rank)(z, labels)


def labels_of_the_wrong_type(rank):
    z, labels = good()
    head_of(rank)(z, labels.float() if rank == 2 else labels)


def no_tensor_at_all(rank):
    z, labels = good()
    head_of(rank)(None if rank == 0 else z, labels)


def embeddings_too_wide(rank):
    z, labels = good()
    head_of(rank)(torch.randn(3, D + 1) if rank == 1 else z, labels)


def negative_sample_weight(rank):
    z, labels = good()
    head_of(rank)(z, labels, sample_weight=torch.ones(3) - 3 * (rank == 1))


def soft_targets(rank):
    z, _ = good()
    head_of(rank)(z, torch.ones(3, K) / K)


def infinite_embeddings(rank):
    z, labels = good()
    z[2, 1] = torch.inf if rank == 1 else 0.0
    head_of(rank)(z, labels, check=True)


def other_objectives(rank):
    head_of(rank, "CosFace(s=8, m=0.2)" if rank else "ArcFace(s=8, m=0.2)")(*good())


def other_scales(rank):
    head_of(rank, f"CosFace(s={8 + rank}, m=0.2)")(*good())


def other_dimensions(rank):
    d = D + (rank == 2)
    head_of(rank, in_features=d)(torch.randn(3, d), torch.arange(3))


def other_numbers_of_classes(rank):
    head_of(rank, num_classes=K + rank)(*good())


def other_class_weights(rank):
    head_of(rank, class_weight=torch.arange(1.0, K + 1) + (rank == 1))(*good())


def other_calls(rank):
    z, labels = good()
    head_of(rank)(z, labels) if rank else head_of(rank).predict(z)


def gradients_on_one_rank(rank):
    with torch.set_grad_enabled(rank == 0):
        head_of(rank)(*good())


def empty_everywhere(rank):
    head_of(rank)(torch.randn(0, D), torch.arange(0))


def the_same_shard_everywhere(rank):
    head = head_of(rank, num_classes=9)
    dist.broadcast(head.weight.data, 0)
    head(*good())


def too_many_to_predict(rank):
    head_of(rank).predict(torch.randn(3, D), top=K + 1)


FAULTS = {
    label_out_of_range: (ValueError, r"^On rank 1: labels must lie in \[0, 7\).*got 7 in row 1"),
    labels_of_the_wrong_type: (TypeError, "^On rank 2: labels must be integers"),
    no_tensor_at_all: (ValueError, "^On rank 0: "),
    embeddings_too_wide: (ValueError, "^On rank 1: embeddings must have 4 columns"),
    negative_sample_weight: (ValueError, "^On rank 1: sample_weight must be at least 0"),
    soft_targets: (ValueError, "On rank 2: ShardedPrototypeHead does not support soft targets.*MixedLabels"),
    infinite_embeddings: (ValueError, "^On rank 1: embeddings must be finite"),
    other_objectives: (
        ValueError,
        r"the same objective: rank 0 has ArcFace\(s=8, m=0.2\), rank 1 has CosFace\(s=8, m=0.2\)",
    ),
    other_scales: (ValueError, r"rank 0 has CosFace\(s=8, m=0.2\), rank 1 has CosFace\(s=9, m=0.2\)"),
    other_dimensions: (ValueError, "the same in_features: rank 0 has 4, rank 2 has 5"),
    other_numbers_of_classes: (ValueError, "the same num_classes: rank 0 has 7, rank 1 has 8"),
    other_class_weights: (ValueError, "the same class_weight: rank 0 has 1 to 7, .* rank 1 has 2 to 8"),
    other_calls: (ValueError, "the same call: rank 0 has predict.* rank 1 has loss"),
    gradients_on_one_rank: (ValueError, "the same gradients: rank 0 has True, rank 1 has False"),
    empty_everywhere: (ValueError, "at least one row on some rank"),
    the_same_shard_everywhere: (ValueError, "Ranks 0 and 1 hold the same prototypes.*backbone"),
    too_many_to_predict: (ValueError, "^On rank 0: top must be at most .* 7"),
}


def every_fault(rank):
    """What each fault raises, and whether the ranks can still work together afterwards."""
    raised = []
    for fault in FAULTS:
        try:
            fault(rank)
        except (ValueError, TypeError) as error:
            raised.append((type(error).__name__, str(error)))
        else:
            raised.append(("nothing", ""))
        assert head_of(rank)(*good()).isfinite()
    return raised


def test_bad_input_on_one_rank_is_raised_on_all(ranks):
    for raised in ranks(3, every_fault):
        for (kind, message), (fault, (expected, pattern)) in zip(raised, FAULTS.items(), strict=True):
            assert kind == expected.__name__, (fault.__name__, kind, message)
            with pytest.raises(expected, match=pattern):
                raise expected(message)


def dies(rank):
    head = head_of(rank)
    head(*good()).backward()
    if rank == 1:
        os._exit(17)
    head(*good())


def test_a_rank_that_dies_ends_the_others_within_the_timeout(ranks):
    start = time.monotonic()
    with pytest.raises(AssertionError) as caught:
        ranks(3, dies, timeout=10)
    assert time.monotonic() - start < 40
    assert caught.value.errors[1] == "exit code 17"
    assert "RuntimeError" in caught.value.errors[0]
    assert "RuntimeError" in caught.value.errors[2]


def test_without_a_process_group_there_is_one_line_that_says_what_to_do():
    with pytest.raises(RuntimeError, match=r"torchrun.*init_process_group"):
        ShardedPrototypeHead(D, K, parse("CE"))


def test_mixed_labels_are_still_checked_for_their_shares(ranks):
    with pytest.raises(AssertionError, match="On rank 0: MixedLabels' lam must lie in"):
        ranks(1, wrong_share)


def wrong_share(rank):
    z, labels = good()
    head_of(rank)(z, MixedLabels(labels, labels, 1.5))
