"""Losses from outside the package: registered, in plugin files, from functions; and what is refused."""

# pyright: reportArgumentType=false
# Wrong types are what is tested.

import itertools
import re
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch

import tammes
from tammes import CosFace, PrototypeHead, parse
from tammes.lab.cli import main
from tammes.losses import Need, PrototypeTerm, SampleMargin, SampleTerm, load_plugin, make_loss
from tammes.losses import _registry as registry

PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"
HEADS = [{"block_size": None}, {}, {"block_size": 2}, {"sample_rate": 0.3}]


@pytest.fixture(autouse=True)
def own_names(monkeypatch):
    """Names registered by a test are forgotten after it."""
    monkeypatch.setattr(registry, "REGISTERED", {})
    monkeypatch.setenv(registry.PLUGINS_VARIABLE, "")
    registry._load_installed_plugins.cache_clear()
    yield
    registry._load_installed_plugins.cache_clear()
    for name in [name for name in sys.modules if name.startswith("tammes_plugin_")]:
        del sys.modules[name]


@pytest.fixture
def plugin(tmp_path):
    """The example of CONTRIBUTING.md as a file outside of the package."""
    (code,) = re.findall(r"```python\n(# my_losses.py\n.*?)```", PAGE.read_text(), re.DOTALL)
    file = tmp_path / "my_losses.py"
    file.write_text(code)
    return file


def batch(seed=0):
    generator = torch.Generator().manual_seed(seed)
    z, labels = torch.randn(6, 4, generator=generator), torch.randint(5, (6,), generator=generator)
    return z.requires_grad_(), labels


def loss_and_gradients(head):
    z, labels = batch()
    loss = head(z, labels)
    found = torch.autograd.grad(loss, (z, head.weight))
    return [loss.detach(), *(g.to_dense() for g in found)]


@pytest.mark.parametrize("options", HEADS, ids=str)
def test_the_example_of_the_page_is_cosface_in_every_head(plugin, options):
    load_plugin(plugin)
    ours, theirs = (
        loss_and_gradients(head)
        for text in ("MyLoss(s=8, m=[0, 0.1, 0.2, 0.3, 0.4])", "CosFace(s=8, m=[0, 0.1, 0.2, 0.3, 0.4])")
        for head in [seeded_head(text + " + 0.5*R_sm", **options)]
    )
    torch.testing.assert_close(ours, theirs)
    assert str(parse("MyLoss(scale=8, margin=0.2)")) == "MyLoss(s=8, m=0.2)"
    with pytest.raises(ValueError, match="MyLoss's scale must be positive, got -1"):
        parse("MyLoss(s=-1, m=0)")


def seeded_head(objective, **options):
    torch.manual_seed(0)
    return PrototypeHead(4, 5, objective, **options)


def test_the_command_line_loads_a_plugin_and_hands_it_on_to_its_workers(plugin, capsys):
    assert main(["theory", "MyLoss(s=8, m=0)", "--classes", "4", "--dim", "8"]) == 1
    assert "Unknown term 'MyLoss'" in capsys.readouterr().err
    assert main(["--plugin", str(plugin), "--version"]) == 0
    assert parse("MyLoss(s=8, m=0)").margin == 0
    code = "import tammes; print(tammes.parse('MyLoss(s=8, m=0.5)'))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "MyLoss(s=8, m=0.5)\n"


MISTAKES = {
    "missing": (None, "does not exist. Pass a Python file that calls tammes.register"),
    "silent": ("x = 1", r"registers no loss. Call tammes.register\(MyLoss\)"),
    "broken": ("1 / 0", "failed: ZeroDivisionError: division by zero"),
    "wrong": ("import tammes; tammes.register(3)", "register takes a class derived from SampleTerm or"),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", MISTAKES)
def test_a_bad_plugin_is_one_line(name, tmp_path, capsys):
    code, wording = MISTAKES[name]
    file = tmp_path / "bad.py"
    if code is not None:
        file.write_text(code)
    assert main([f"--plugin={file}", "--version"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(wording, line)


def test_plugin_needs_a_file(capsys):
    assert main(["--version", "--plugin"]) == 1
    assert capsys.readouterr().err == "tammes: --plugin needs a file: --plugin my_losses.py.\n"


def term(**changes):
    """A valid term class, with some of its parts replaced."""

    def per_sample(self, scores, **own):
        return -scores.target

    parts = {"text_name": "Away", "need": property(lambda self: Need()), "per_sample": per_sample} | changes
    kind = type("Away", (changes.pop("base", SampleTerm),), {k: v for k, v in parts.items() if v is not None})
    return dataclass(frozen=True, kw_only=True)(kind)


def test_installed_packages_list_their_losses_as_entry_points(monkeypatch):
    entry = EntryPoint("away", "away_package:Away", registry.ENTRY_POINTS)
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry])
    with pytest.raises(ValueError, match=r"entry point 'away' = 'away_package:Away' .* ModuleNotFoundError"):
        parse("Away")
    module = type(sys)("away_package")
    module.Away = term()
    monkeypatch.setitem(sys.modules, "away_package", module)
    assert type(parse("CE + Away").weighted_terms[1][1]) is module.Away


@dataclass(frozen=True, kw_only=True)
class CosFaceTwin(CosFace):
    """Inherits the text name of the original."""


class Undecorated(SampleTerm):
    text_name = "Undecorated"


REFUSED = [
    (lambda: 3, TypeError, "register takes a class derived from SampleTerm or PrototypeTerm, got 3"),
    (lambda: CosFace(s=1, m=0), TypeError, "register takes a class"),
    (lambda: Undecorated, TypeError, r"must be a frozen dataclass: .*@dataclass\(frozen=True"),
    (lambda: CosFaceTwin, ValueError, "'CosFace' is taken by tammes.losses.cosface.CosFace. Choose another"),
    (lambda: term(text_name="R_w"), ValueError, "'R_w' is taken by tammes.losses.zero_centroid"),
    (lambda: term(text_name=None), TypeError, r"Away.text_name must be a Python identifier, got None"),
    (lambda: term(text_name="a b"), TypeError, "must be a Python identifier, got 'a b'"),
    (lambda: term(text_name="lambda"), TypeError, "must be a Python identifier, got 'lambda'"),
    (lambda: term(need=None), TypeError, "Away must define need"),
    (lambda: term(per_sample=None), TypeError, "Away must define per_sample"),
    (lambda: term(base=PrototypeTerm), TypeError, "Away must define of_prototypes"),
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("make", "error", "wording"), REFUSED)
def test_bad_terms_are_refused(make, error, wording):
    with pytest.raises(error, match=wording):
        tammes.register(make())


def test_a_class_may_be_registered_again():
    first, again = term(), term()
    assert tammes.register(first) is first
    assert tammes.register(again) is again
    assert type(parse("Away")) is again


READS = {
    "rest": "scale=...",
    "hardest": "hardest=True",
    "mean": "mean=True",
    "norms": "norms=True",
    "smoothing": "smoothing=True",
    "feature_norms": "feature_norms=True",
    "noise": "noise=True",
}
USES = {
    "an operator": lambda x, t: t - x,
    "a function of torch": lambda x, t: torch.logaddexp(t, x),
    "a list for torch": lambda x, t: torch.stack([t, x]).sum(0),
    "a method": lambda x, t: x.detach(),
    "a field": lambda x, t: x.similarity,
    "unpacking": lambda x, t: [*x],
}


@pytest.mark.parametrize("name", READS)
def test_reading_what_was_not_asked_for_names_the_field_of_need(name):
    z, labels = batch()
    wording = re.escape(f"scores.{name} without requesting it. Return Need({READS[name]})")
    for use, kind in itertools.product(USES.values(), (labels, torch.eye(5)[labels])):
        loss = make_loss(lambda scores, use=use: use(getattr(scores, name), scores.target), needs=Need())
        with pytest.raises(ValueError, match=wording):
            loss(z, torch.eye(5, 4), kind)


def norm_of_the_centroid(self, statistics):
    return statistics.centroid("cosine").norm()


def test_a_centroid_that_was_not_asked_for_names_the_field_of_need():
    kind = term(base=PrototypeTerm, of_prototypes=norm_of_the_centroid)
    for options in HEADS:
        with pytest.raises(ValueError, match=r'Return Need\("cosine", prototype_sum=True\)'):
            PrototypeHead(4, 5, kind(), **options)(*batch())


def hinge(scores):
    return (0.2 + scores.hardest - scores.target).clamp(min=0)


@pytest.mark.parametrize("options", HEADS, ids=str)
def test_a_function_becomes_a_term(options):
    objective = make_loss(hinge, needs=Need(hardest=True)) + 0.5 * SampleMargin()
    assert str(objective) == "hinge + 0.5*R_sm"
    head = seeded_head(objective, **options)
    loss, of_z, of_weight = loss_and_gradients(head)
    z, labels = batch()
    if head.sampler is None:
        cosines = torch.nn.functional.normalize(z) @ torch.nn.functional.normalize(head.weight).T
        own = cosines.gather(1, labels[:, None]).squeeze(1)
        gap = cosines.scatter(1, labels[:, None], -2).amax(1) - own
        expected = (gap + 0.2).clamp(min=0).mean() + 0.5 * gap.mean()
        torch.testing.assert_close(loss, expected.detach())
        torch.testing.assert_close([of_z, of_weight], list(torch.autograd.grad(expected, (z, head.weight))))


@pytest.mark.usefixtures("unchecked")
def test_make_loss_checks_its_arguments():
    with pytest.raises(TypeError, match="make_loss takes a function of Scores, got 3"):
        make_loss(3, needs=Need())
    with pytest.raises(TypeError, match=r"needs must be a Need, such as .*, got 'cosine'"):
        make_loss(hinge, needs="cosine")
