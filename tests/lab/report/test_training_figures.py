import pytest

from tammes.lab.report import training_figures
from tammes.lab.report.training_figures import draw_histograms, draw_measures, draw_norm_ratios


def record(objective: str, start: float) -> dict:
    return {
        "config": {"objective": objective},
        "metrics": {"class_margin_maximum_deg": 96.4, "sample_margin_ceiling": 1.1},
        "curves": {
            "epoch": [0, 2],
            "accuracy": [start, start + 0.1],
            "class_margin_deg": [70.0, 80.0],
            "sample_margin": [0.2, 0.5],
            "smallest_norm": [1.0, 0.8],
            "largest_norm": [1.1, 1.2],
        },
        "histograms": {
            "similarity": {"low": 0.8, "width": 0.1, "counts": [1, 3]},
            "sample_margin": {"low": 0.0, "width": 0.1, "counts": [2, 0, 2]},
        },
    }


RECORDS = {"CE": record("CE", 0.5), "CE + 0.5 R_sm": record("CE + 0.5*R_sm", 0.6)}


@pytest.fixture
def drawn(monkeypatch):
    """The figures that would be saved."""
    caught: list = []
    monkeypatch.setattr(training_figures, "save_figure", lambda figure, path, **_: caught.append(figure))
    return caught


def test_curves_are_the_records_and_the_maxima_are_drawn(drawn, tmp_path):
    draw_measures(RECORDS, "title", tmp_path / "a.png")
    accuracy, margin, sample = drawn[0].axes
    assert [list(line.get_ydata()) for line in accuracy.lines] == [[50.0, 60.0], [60.0, 70.0]]
    assert list(accuracy.lines[0].get_xdata()) == [1, 3]
    assert list(margin.lines[-1].get_ydata()) == [96.4, 96.4]
    assert list(sample.lines[-1].get_ydata()) == [1.1, 1.1]
    assert [text.get_text() for text in drawn[0].legends[0].get_texts()] == list(RECORDS)


def test_rows_of_one_loss_share_a_color_and_differ_in_their_lines(drawn, tmp_path):
    texts = ("CE", "CE + 0.5*R_sm", "R_sm", "CE + R_sm")
    draw_measures({text: record(text, 0.5) for text in texts}, "title", tmp_path / "a.png")
    lines = drawn[0].axes[0].lines
    assert [line.get_linestyle() for line in lines] == ["-", "--", "-", ":"]
    first, second, other, third = (tuple(line.get_color()) for line in lines)
    assert first == second == third != other


def test_norm_ratios_are_largest_over_smallest(drawn, tmp_path):
    draw_norm_ratios({"MNIST": RECORDS["CE"]}, "title", tmp_path / "a.png")
    assert list(drawn[0].axes[0].lines[0].get_ydata()) == pytest.approx([1.1, 1.5])


def test_histograms_are_shares_of_samples_with_their_mean(drawn, tmp_path):
    draw_histograms(RECORDS, "title", tmp_path / "a.png")
    axes = drawn[0].axes
    assert len(axes) == 4
    assert [bar.get_height() for bar in axes[0].patches] == [25.0, 75.0]
    assert axes[0].patches[1].get_x() == pytest.approx(0.9)
    # bins 0.8-0.9 once and 0.9-1.0 three times: centers 0.85 and 0.95
    assert axes[0].lines[0].get_xdata()[0] == pytest.approx(0.925)
    assert axes[2].get_xlim() == pytest.approx((0.0, 0.3))


def test_a_picture_is_written_whole(tmp_path):
    draw_measures(RECORDS, "title", tmp_path / "new" / "a.png")
    assert (tmp_path / "new" / "a.png").read_bytes().startswith(b"\x89PNG")
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["a.png"]
