"""The paper's claims: the rows that test each of them, and the verdict of their records.

docs/claims.md has the protocol: the paper's words, the pairs of rows, what counts as support. Here each line
of its table is a `Question`: pairs of rows that differ in one thing, a metric, and the sign the paper claims.
Effects are differences between two runs with the same seed; their mean has a 95 % Student interval.
Run: tammes reproduce claims
"""

import functools
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal, NamedTuple

from tammes.lab.recipes import ablation, table1, table2, table3, table4, table7
from tammes.lab.recipes.row_records import read_rows
from tammes.lab.recipes.table import MOST_SEEDS, Row, Table, seed_suffix, seeded
from tammes.lab.report.tables import Cell, Grid, Records

LEAST_PAIRS = 3
"""Fewer pairs cannot support or contradict a claim."""

TITLES = {
    1: "Claim 1: the class margin falls as s grows; R_sm raises margins and accuracy",
    2: "Claim 2: LM-Softmax has larger margins",
    3: "Claim 3: R_w raises the class margin and the accuracy on imbalanced classes",
    4: "Claim 4: LM-Softmax is best at re-identification, whatever s",
    5: "Claim 5: R_sm and R_w improve face verification",
}
HEADS = ("compared", "where", "measure", "verdict", "effect", "95 % interval", "n", "for it", "records")
SHORT = HEADS.index("for it")
"""Number of columns of the short table."""

NOTE = (
    "Effect: mean over pairs of runs with the same seed; interval: 95 %, Student; n: pairs; for it: pairs "
    f"with the sign that the paper claims. Fewer than {LEAST_PAIRS} pairs decide nothing."
)

Side = tuple[str, ...]
Verdict = Literal["supported", "contradicted", "inconclusive"]


class ClaimedMetric(NamedTuple):
    """A number of the records; `factor` converts it to the unit shown."""

    name: str
    key: str
    unit: str
    digits: int
    factor: float = 1.0


CLASS_MARGIN = ClaimedMetric("class margin", "class_margin_deg", "deg", 1)
SAMPLE_MARGIN = ClaimedMetric("sample margin", "sample_margin", "", 3)
ACCURACY = ClaimedMetric("accuracy", "accuracy", "points", 2, 100.0)
MAP = ClaimedMetric("mAP", "mAP", "points", 1, 100.0)
FACES = ClaimedMetric("accuracy", "lfw_view1_accuracy", "points", 2, 100.0)


class Question(NamedTuple):
    """A line of the table.

    Attributes:
        claim: number of the claim.
        asks: what is compared with what.
        where: data and settings.
        metric: what is measured.
        table: the table whose rows the pairs name.
        pairs: keys of rows without seed, the changed side first. Sides with several keys are compared by
            their range, the largest number minus the smallest.
        claimed: sign of the effect that the paper claims.
        most: whether more than half of the pairs must have that sign too.
    """

    claim: int
    asks: str
    where: str
    metric: ClaimedMetric
    table: Table
    pairs: Sequence[tuple[Side, Side]]
    claimed: int = 1
    most: bool = False

    @property
    def folder(self) -> str:
        """Directory of the records, below the directory of all results."""
        return Path(self.table.out).name


class Answer(NamedTuple):
    """What the records say: the effect of each pair and the verdict."""

    question: Question
    effects: Sequence[float]
    verdict: Verdict

    @property
    def mean(self) -> float | None:
        return fmean(self.effects) if self.effects else None

    @property
    def interval(self) -> tuple[float, float] | None:
        return interval(self.effects)

    @property
    def for_it(self) -> int:
        """Number of effects with the claimed sign."""
        return sum(self.question.claimed * effect > 0 for effect in self.effects)


def interval(effects: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % Student interval of the mean; None for fewer than two effects.

    >>> low, high = interval([1.0, 2.0, 3.0])  # 2 -+ 4.303 / sqrt(3)
    >>> round(low, 3), round(high, 3)
    (-0.484, 4.484)
    """
    if len(effects) < 2:
        return None
    from scipy.stats import t

    half = float(t.ppf(0.975, len(effects) - 1)) * stdev(effects) / math.sqrt(len(effects))
    return fmean(effects) - half, fmean(effects) + half


def judge(effects: Sequence[float], claimed: int, *, most: bool = False) -> Verdict:
    """The verdict by the protocol's rule.

    >>> judge([1.0, 1.1, 0.9], 1), judge([1.0, 1.1, 0.9], -1), judge([1.0, -1.0, 0.5], 1), judge([5.0], 1)
    ('supported', 'contradicted', 'inconclusive', 'inconclusive')
    """
    if len(effects) < LEAST_PAIRS:
        return "inconclusive"
    ends = interval(effects)
    assert ends is not None
    low, high = sorted(claimed * end for end in ends)
    if high < 0:
        return "contradicted"
    enough = not most or sum(claimed * effect > 0 for effect in effects) > len(effects) / 2
    return "supported" if low > 0 and enough else "inconclusive"


def answers(results: Path) -> list[Answer]:
    """Answer every question from the records under `results`."""
    records: dict[str, Records] = {}  # by table, since many questions share one
    for question in (every := questions()):
        table = question.table
        if table.name not in records:
            records[table.name] = read_rows(seeded(table.rows, MOST_SEEDS), results / question.folder)
    return [answer(question, records[question.table.name]) for question in every]


def answer(question: Question, records: Records) -> Answer:
    """Answer one question from the records of its table."""
    found = effects(question.pairs, records, question.metric)
    return Answer(question, found, judge(found, question.claimed, most=question.most))


def effects(pairs: Iterable[tuple[Side, Side]], records: Records, metric: ClaimedMetric) -> list[float]:
    """The difference of each pair, seed by seed, where both sides have the metric."""
    ends = [seed_suffix(seed) for seed in range(MOST_SEEDS)]
    found = [_effect(changed, plain, end, records, metric) for changed, plain in pairs for end in ends]
    return [metric.factor * effect for effect in found if effect is not None]


def _effect(changed: Side, plain: Side, end: str, records: Records, metric: ClaimedMetric) -> float | None:
    def value(key: str) -> Any:
        return (records.get(key + end, {}).get("metrics") or {}).get(metric.key)

    two = [(value(a), value(b)) for a, b in zip(changed, plain, strict=True)]
    both = [(a, b) for a, b in two if a is not None and b is not None]
    if len(both) < min(2, len(two)):
        return None
    if len(two) == 1:
        return both[0][0] - both[0][1]
    first, second = ([pair[side] for pair in both] for side in (0, 1))
    return (max(first) - min(first)) - (max(second) - min(second))


def claims_grid(answers: Sequence[Answer], *, short: bool = False) -> Grid:
    """The table of the answers, one block per claim. The short one leaves counts and directories out."""
    columns = SHORT if short else len(HEADS)
    blocks: dict[int, list[list[Cell]]] = {}
    for answer in answers:
        blocks.setdefault(answer.question.claim, []).append(_cells(answer)[:columns])
    titled = [(TITLES[claim], lines) for claim, lines in blocks.items()]
    return Grid("The paper's claims", HEADS[:columns], titled, words=4, notes=[] if short else [NOTE])


def _cells(answer: Answer) -> list[Cell]:
    question, ends = answer.question, answer.interval
    metric, n = question.metric, len(answer.effects)
    effect = "" if answer.mean is None else f"{answer.mean:+.{metric.digits}f} {metric.unit}".strip()
    interval = "" if ends is None else " to ".join(f"{end:+.{metric.digits}f}" for end in ends)
    counted = (str(n), f"{answer.for_it} of {n}" if n else "", f"results/{question.folder}")
    words = (question.asks, question.where, metric.name, answer.verdict, effect, interval, *counted)
    return [Cell(word) for word in words]


def questions() -> list[Question]:
    """Every line of the table, in the order of the claims."""
    return [*_sample_margin(), *_scale(), *_lm_softmax(), *_zero_centroid(), *_people(), *_faces()]


@functools.cache
def _balanced() -> list[tuple[str, Table]]:
    """The parts of Table 1 that have records: what to call them, and the table."""
    return [
        ("MNIST, laptop", table1.table(dataset="mnist")),
        ("MNIST, paper", table1.table(dataset="mnist", preset="paper")),
        ("CIFAR-10, laptop", table1.table(dataset="cifar10")),
        ("CIFAR-100, laptop", table1.table(dataset="cifar100")),
    ]


def _extensions(rows: Sequence[Row], end: str = "") -> list[tuple[Side, Side]]:
    """Each row that extends another, with that row."""
    return [((row.key,), (row.versus,)) for row in rows if row.versus and row.key.endswith(end)]


def _sample_margin() -> Iterable[Question]:
    """Claim 1: 0.5 R_sm raises margins, and accuracy in most cases."""
    for where, table in _balanced():
        yield from _with_r_sm(where, table, _extensions(table.rows, "+0.5rsm"))
    for dataset, name in ablation.NAMES.items():
        table = ablation.table(dataset=dataset)
        for projection, words in (("free", "no projection"), ("projected", "projection")):
            pairs = _extensions(table.rows, f"cnn4-hidden-{projection}-lr0.1+0.5rsm")
            yield from _with_r_sm(f"{name}, NormFace s=64, {words}", table, pairs)


def _with_r_sm(where: str, table: Table, pairs: Sequence[tuple[Side, Side]]) -> Iterable[Question]:
    for metric in (CLASS_MARGIN, SAMPLE_MARGIN, ACCURACY):
        yield Question(1, "with 0.5 R_sm", where, metric, table, pairs, most=metric is ACCURACY)


def _scale() -> Iterable[Question]:
    """Claim 1: the class margin falls as s grows."""
    for where, table in _balanced():
        names = [f"{table.prefix}{loss.lower()}" for loss in table1.LOSSES]
        pairs = [((f"{name}-s64",), (f"{name}-s10",)) for name in names]
        yield Question(1, "s = 64 against s = 10", where, CLASS_MARGIN, table, pairs, claimed=-1)


def _lm_softmax() -> Iterable[Question]:
    """Claim 2: LM-Softmax has larger margins than NormFace with the same s."""
    for where, table in _balanced():
        start = table.prefix
        pairs = [((f"{start}lmsoftmax-s{s}",), (f"{start}normface-s{s}",)) for s in table1.LM_SCALES]
        for metric in (CLASS_MARGIN, SAMPLE_MARGIN):
            yield Question(2, "LM-Softmax against NormFace", where, metric, table, pairs)


def _zero_centroid() -> Iterable[Question]:
    """Claim 3: R_w raises the class margin on imbalanced classes, and accuracy in most cases."""
    asks, end = f"lambda = {table2.MAIN_LAMBDA}", f"-{table2.MAIN_LAMBDA}"
    for dataset, name in table2.NAMES.items():
        imbalances: tuple[table2.ImbalanceText, ...] = ("long_tailed:100", "step:100")
        for imbalance in imbalances:
            table = table2.table(dataset=dataset, imbalance=imbalance)
            pairs = [pair for pair in _extensions(table.rows, end) if "-lse-" not in pair[0][0]]
            where = f"{name}, {imbalance}, laptop"
            for metric in (CLASS_MARGIN, ACCURACY):
                yield Question(3, asks, where, metric, table, pairs, most=metric is ACCURACY)
    table = table7.table()
    where = "CIFAR-10, long_tailed:100, two stages"
    yield Question(3, "with R_w", where, ACCURACY, table, _extensions(table.rows), most=True)


def _people() -> Iterable[Question]:
    """Claim 4: LM-Softmax has the best mAP, and depends least on s."""
    table, where = table3.table(dataset="market1501"), "Market-1501 (training part), laptop"
    over_scales = {
        loss: tuple(table.prefix + table3.row_name(loss, s) for s in table3.SCALES) for loss in table3.LOSSES
    }
    ours = over_scales.pop("LM-Softmax")
    single = [((a,), (b,)) for other in over_scales.values() for a, b in zip(ours, other, strict=True)]
    yield Question(4, "LM-Softmax against the others", where, MAP, table, single)
    ranges = [(ours, other) for other in over_scales.values()]
    words = "range over s, LM-Softmax against the others"
    yield Question(4, words, where, MAP, table, ranges, claimed=-1)


def _faces() -> Iterable[Question]:
    """Claim 5: R_sm and R_w improve verification in most cases."""
    table = table4.table()
    pairs = _extensions(table.rows)
    yield Question(5, "with R_sm or R_w", "LFW View 1, laptop", FACES, table, pairs, most=True)
