import numpy as np
import pytest

from tammes.metrics.calibration import expected_calibration_error


def by_hand(confidence, correct, bins):
    """The definition, bin by bin: (low, high]; the first one has its lower edge too."""
    total = 0.0
    for b in range(bins):
        low, high = b / bins, (b + 1) / bins
        inside = (confidence > low) & (confidence <= high) if b else confidence <= high
        if inside.any():
            total += inside.mean() * abs(correct[inside].mean() - confidence[inside].mean())
    return total


@pytest.mark.parametrize("bins", [1, 4, 15])
def test_it_is_the_gap_averaged_over_bins(bins):
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0, 1, 900)
    side = np.where(np.ceil(confidence * bins) % 2 == 0, 0.3, -0.3)  # bins that were joined would cancel out
    correct = rng.uniform(0, 1, 900) < confidence + side
    found = expected_calibration_error(confidence, correct, bins)
    assert found == pytest.approx(by_hand(confidence, correct, bins))
    assert found > 0.1


def test_edges_count_once():
    confidence = np.array([0.0, 0.25, 0.5, 1.0])
    correct = np.array([True, True, False, True])
    assert expected_calibration_error(confidence, correct, 4) == pytest.approx(
        by_hand(confidence, correct, 4)
    )


def test_certain_and_right_is_calibrated_and_certain_and_wrong_is_not():
    sure = np.ones(8)
    assert expected_calibration_error(sure, sure > 0) == 0
    assert expected_calibration_error(sure, sure < 0) == 1


def test_logits_and_lengths_that_differ_are_refused():
    with pytest.raises(ValueError, match="probabilities, not logits"):
        expected_calibration_error(np.array([3.0]), np.array([True]))
    with pytest.raises(ValueError, match="got 2 and 1"):
        expected_calibration_error(np.array([0.5, 0.5]), np.array([True]))
