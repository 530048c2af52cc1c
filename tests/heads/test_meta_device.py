"""Heads built without memory: `torch.device("meta")`, `to_empty`, Hugging Face's `from_pretrained`."""

import copy
import runpy
from pathlib import Path

import pytest
import torch
from torch import nn

from tammes import PrototypeHead, parse
from tammes.losses import LDAM, ArcFace, CosFace, NormFace, Scores
from tammes.losses.advice import _loss_at

K, D, N = 7, 5, 9
TERMS = runpy.run_path(str(Path(__file__).parents[1] / "losses" / "conftest.py"))["make_examples"](K)
COUNTS, WEIGHT = [500, 100, 50, 20, 10, 5, 2], [1.0, 2, 0.5, 3, 1, 1, 4]
pytestmark = pytest.mark.filterwarnings("ignore:.*classes:UserWarning")


def batch():
    torch.manual_seed(1)
    return torch.randn(N, D), torch.randint(K, (N,))


def on_meta(objective, **options):
    with torch.device("meta"):
        head = PrototypeHead(D, K, objective, **options)
    assert head.weight.is_meta
    return head


def assert_same(head, twin):
    """The same loss and gradient, given the same prototypes."""
    twin.load_state_dict(head.state_dict())
    for one in (head, twin):
        one.weight.grad = None
        if one.weight.requires_grad:
            one(*batch()).sum().backward()
    assert torch.equal(head(*batch()), twin(*batch())) or head.sampler is not None
    if head.weight.requires_grad and head.sampler is None:
        torch.testing.assert_close(head.weight.grad, twin.weight.grad)


@pytest.mark.parametrize("name", TERMS)
def test_every_term_can_be_built_on_meta_filled_and_used(name):
    head = on_meta(TERMS[name]).to_empty(device="cpu")
    head.reset_parameters()
    torch.testing.assert_close(head.weight.norm(dim=1), torch.ones(K))
    assert_same(head, PrototypeHead(D, K, TERMS[name]))


@pytest.mark.parametrize(
    "options",
    [
        {"sample_rate": 0.3},
        {"init": "packed"},
        {"class_counts": COUNTS, "class_weight": WEIGHT},
        {"class_counts": torch.tensor(COUNTS, device="cpu"), "trainable": False},
        {"dtype": torch.float64, "block_size": None},
    ],
    ids=lambda options: " ".join(options),
)
def test_every_option_survives_a_start_on_meta(options):
    objective = LDAM(scale=8, counts=None if "class_counts" in options else COUNTS) + NormFace(scale=8)
    head = on_meta(objective, **options).to_empty(device="cpu")
    head.reset_parameters()
    torch.manual_seed(0)
    twin = PrototypeHead(D, K, objective, **options)
    for name in ("class_counts", "class_weight"):
        mine, other = getattr(head, name), getattr(twin, name)
        assert (mine is None) == (other is None)
        assert mine is None or torch.equal(mine, other)
    if options.get("init") == "packed":
        assert torch.equal(head.weight, twin.weight)
    if head.weight.dtype == torch.float32 and not options.get("sample_rate"):
        assert_same(head, twin)
    if options.get("sample_rate"):
        for _ in range(2):  # two that accumulate: the hook that keeps gradients coalesced is there
            head(*batch()).backward()
        assert head.weight.grad.is_coalesced()


def test_a_parent_is_filled_too():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(D, D), PrototypeHead(D, K, LDAM(scale=8), class_counts=COUNTS))
    model.to_empty(device="cpu")
    model[1].reset_parameters()
    assert model[1].class_counts.tolist() == COUNTS
    assert model[1](*batch()).isfinite()


def test_a_state_dict_fills_a_head_on_meta():
    full = PrototypeHead(D, K, LDAM(scale=8), class_counts=COUNTS, sample_rate=0.5)
    head = on_meta(LDAM(scale=8), class_counts=[1] * K, sample_rate=0.5)
    head.load_state_dict(full.state_dict(), assign=True)
    assert torch.equal(head.eval()(*batch()), full.eval()(*batch()))
    head.train()
    for _ in range(2):
        head(*batch()).backward()
    assert head.weight.grad.is_coalesced()
    head.to(torch.float64)  # what the constructor was given does not come back
    assert head.class_counts.tolist() == COUNTS


def test_moving_to_meta_and_back_keeps_buffers():
    head = PrototypeHead(D, K, LDAM(scale=8), class_counts=COUNTS, class_weight=WEIGHT)
    again = copy.deepcopy(head).to("meta").to_empty(device="cpu")
    assert again.class_counts.tolist() == COUNTS
    assert again.class_weight.tolist() == WEIGHT
    with torch.no_grad():
        again.weight.copy_(head.weight)
    assert torch.equal(again(*batch()), head(*batch()))


def test_counts_without_values_are_refused():
    with torch.device("meta"), pytest.raises(ValueError, match=r"class_counts .* meta device.*Pass a list"):
        PrototypeHead(D, K, LDAM(scale=8), class_counts=torch.ones(K))


@pytest.mark.parametrize(
    "text",
    [
        "NormFace(s=8)",
        "CosFace(s=8, m=0.35)",
        "ArcFace(s=8, m=0.5)",
        "ArcFace(s=8, m=1.4, easy_margin=True)",
        "SphereFace(s=8, m=2.5)",
        "CombinedMargin(s=8, m1=1.3, m2=0.4, m3=0.2)",
    ],
)
def test_the_advisors_floats_are_the_terms_own_values(text):
    for lead in (1.1, 0.5):
        cosines = torch.full((1, K), 1 - lead, dtype=torch.float64)
        cosines[0, 3] = 1.0
        scores = Scores.of(cosines, torch.tensor([3]), scale=8.0)
        assert _loss_at(lead, parse(text), K) == pytest.approx(parse(text).per_sample(scores).item())


transformers = pytest.importorskip("transformers", reason="an example wraps a head in a PreTrainedModel")


class Settings(transformers.PretrainedConfig):
    model_type = "tammes-test"


class Model(transformers.PreTrainedModel):
    """A PreTrainedModel around a head, as users write it."""

    config_class = Settings

    def __init__(self, config):
        super().__init__(config)
        self.encoder = nn.Linear(4, D)
        objective = LDAM(scale=8) + CosFace(scale=8, margin=0.1) + ArcFace(scale=8, margin=[0.1] * K)
        self.head = PrototypeHead(D, K, objective, class_counts=COUNTS, class_weight=WEIGHT)
        self.post_init()

    def _init_weights(self, module):
        """Trained weights are all there; nothing to initialize."""

    def forward(self, pixels, labels=None):
        return self.head(self.encoder(pixels), labels)


def test_save_pretrained_and_from_pretrained_round_trip(tmp_path):
    model = Model(Settings()).eval()
    with torch.no_grad():
        model.head.class_counts += 3
    model.save_pretrained(tmp_path)
    again = Model.from_pretrained(tmp_path).eval()
    assert torch.equal(again.head.weight, model.head.weight)
    assert again.head.class_counts.tolist() == [n + 3 for n in COUNTS]
    pixels, labels = torch.randn(N, 4), batch()[1]
    assert torch.equal(again(pixels), model(pixels))
    model.head.objective = model.head.objective  # the counts were changed in place
    assert torch.equal(again(pixels, labels), model(pixels, labels))
