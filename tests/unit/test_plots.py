"""What the figures hold, read back from their artists."""

from __future__ import annotations

import numpy as np
import pytest

from specsim import SpecConfig, fit
from specsim.errors import MixedSetupError, UnknownSettingError
from specsim.questions import Asked
from specsim.report.plots import break_even_figure, drawings, save, throughput_figure
from tests.synthetic import run


def legend(figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].get_legend().get_texts()]


def test_break_even_has_a_line_a_setting_points_and_the_limit(campaign_model):
    figure = break_even_figure(campaign_model, Asked())
    assert legend(figure) == [
        "needed, NCCL default", "measured width, default", "needed, NCCL LL-Ring-SYS", "measured width, LL-Ring-SYS",
        "most possible (num_steps + 1)", "accept length measured",
    ]  # fmt: skip
    lines = {line.get_label(): line for line in figure.axes[0].get_lines()}
    assert lines["measured width, default"].get_xydata()[:, 1] == pytest.approx([26.81 * 0.0629, 30.29 * 0.0629])
    drawn = lines["needed, NCCL default"].get_xydata()
    assert np.isfinite(drawn[:, 1]).tolist() == [3 <= width <= 6 for width in drawn[:, 0]]
    assert lines["accept length measured"].get_xydata().tolist() == [[6, 2.1]]


def test_cycle_bars_add_up_to_the_cycle(campaign_model):
    ((_, draw),) = drawings(campaign_model, Asked(nccl="default", num_draft_tokens=6), ("cycle",))
    bars = draw().axes[0].patches
    assert sum(bar.get_width() for bar in bars) == pytest.approx(30.29)
    assert max(bar.get_x() + bar.get_width() for bar in bars) == pytest.approx(30.29)


def test_throughput_marks_the_crossing(campaign_model):
    figure = throughput_figure(campaign_model, Asked(nccl="default"), SpecConfig.of(num_draft_tokens=6))
    assert "plain decode, NCCL default: break-even at 1.91" in legend(figure)
    marks = [line.get_xydata()[0] for line in figure.axes[0].get_lines() if line.get_marker() == "o"]
    assert marks[0] == pytest.approx([1.905241, 62.9])


def test_settings_that_cannot_be_drawn_raise_their_reason():
    model = fit([run("6", 1, 6, verify_ms=28.7), run("3", 1, 3, verify_ms=25.6)]).model
    with pytest.raises(MixedSetupError, match="no plain-decode baseline"):
        break_even_figure(model, Asked())
    with pytest.raises(UnknownSettingError):
        break_even_figure(model, Asked(nccl="other"))


def test_the_same_data_give_the_same_bytes(campaign_model, tmp_path):
    for form in ("png", "svg"):
        files = [tmp_path / f"{n}.{form}" for n in "ab"]
        for path in files:
            save(break_even_figure(campaign_model, Asked()), path)
        assert files[0].read_bytes() == files[1].read_bytes()
