"""What to try where classes differ much in size."""

from tammes.losses import LDAM, LMSoftmax, ZeroCentroid, parse
from tammes.metrics.by_count import skewed
from tammes.training.classifier import DataFacts
from tammes.training.config import Config


def skew_advice(config: Config, facts: DataFacts) -> str | None:
    """One line on skewed classes that the config does nothing about."""
    most, least = max(facts.class_counts), min(facts.class_counts)
    terms = [term for _, term in parse(config.objective).terms]
    handled = (
        any(isinstance(term, LDAM | ZeroCentroid) for term in terms)
        or any(isinstance(term, LMSoftmax) and term.reduction == "lse" for term in terms)
        or config.sampling != "shuffled"
        or config.class_weights != "none"
        or config.logit_adjustment > 0
        or config.tau > 0
    )
    if handled or not skewed(facts.class_counts):
        return None
    return (
        f"Classes are skewed {most / least:.0f} : 1 ({most:,} to {least:,} images). Worth a try: "
        '--objective "... + 100*R_w", LDAM(s=...) as the loss, or --sampling balanced.'
    )
