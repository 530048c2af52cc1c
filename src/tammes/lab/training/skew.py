"""Advice for imbalanced classes."""

from tammes.lab.training.classifier import DataFacts
from tammes.lab.training.config import ResolvedConfig
from tammes.losses import LDAM, LMSoftmax, ZeroCentroid
from tammes.metrics.shot_groups import imbalanced


def skew_advice(config: ResolvedConfig, facts: DataFacts) -> str | None:
    """One line of advice if the classes are imbalanced and the config does nothing about it."""
    most, least = max(facts.class_counts), min(facts.class_counts)
    terms = [term for _, term in config.parsed.weighted_terms]
    handled = (
        any(isinstance(term, LDAM | ZeroCentroid) or term.need.class_logits for term in terms)
        or any(isinstance(term, LMSoftmax) and term.reduction == "lse" for term in terms)
        or config.sampling != "shuffled"
        or config.class_weights != "none"
        or config.logit_adjustment > 0
        or config.tau > 0
    )
    if handled or not imbalanced(facts.class_counts):
        return None
    return (
        f"Classes are imbalanced, {most / least:.0f}:1 ({most:,} to {least:,} images). Try "
        '--sampling balanced, or --objective "LDAM(s=30)" --class-weights effective --reweight-from 0.8.'
    )
