"""What the figures hold, read back from their artists."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from specsim import SpecConfig, fit
from specsim.errors import ConfigurationError, MixedSetupError, UnknownSettingError
from specsim.questions import Asked
from specsim.report.plots import break_even_figure, drawings, save, throughput_figure
from tests.synthetic import run


def legend(figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].get_legend().get_texts()]


def test_break_even_has_a_line_a_setting_points_and_the_limit(campaign_model):
    figure = break_even_figure(campaign_model, Asked())
    assert legend(figure) == [
        "needed, NCCL default", "measured, NCCL default", "needed, NCCL LL-Ring-SYS", "measured, NCCL LL-Ring-SYS",
        "not possible (above num_steps + 1)", "accept length measured",
    ]  # fmt: skip
    lines = {line.get_label(): line for line in figure.axes[0].get_lines()}
    assert lines["measured, NCCL default"].get_xydata()[:, 1] == pytest.approx([26.81 * 0.0629, 30.29 * 0.0629])
    thick = [line.get_xydata() for line in figure.axes[0].get_lines() if line.get_linewidth() > 2]
    for drawn, measured in zip(thick, ((3, 6), (6, 6)), strict=True):  # the tuned setting was measured at 6 only
        assert np.isfinite(drawn[:, 1]).tolist() == [measured[0] <= width <= measured[1] for width in drawn[:, 0]]
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


def test_trees_and_other_batches_are_drawn_where_they_were_measured():
    tree = SpecConfig(3, 4, 16)
    runs = [run("4", 1, 4, cycle_ms=24.0), run("6", 1, 6, cycle_ms=26.0), run("wide", 64, 6, cycle_ms=60.0)]
    runs += [replace(run("tree", 1, 6, cycle_ms=33.0), spec=tree), run("p", 1, None, decode_ms=15.0)]
    axes = break_even_figure(fit(runs).model, Asked()).axes[0]
    lines = {line.get_label(): line.get_xydata() for line in axes.get_lines()}
    assert lines["measured, NCCL s"][:, 0].tolist() == [4, 6]
    assert lines["measured tree, NCCL s"][:, 0].tolist() == [16]
    assert axes.get_xlim()[1] < 30  # not the widths of batch 64


def test_the_line_is_that_of_the_method_that_was_run():
    runs = [replace(run(str(n), 1, n, cycle_ms=20.0 + n), spec=SpecConfig(1, 1, n, "dflash")) for n in (4, 8)]
    model = fit([*runs, run("p", 1, None, decode_ms=15.0)]).model
    figure = break_even_figure(model, Asked())
    assert "not possible (above num_draft_tokens)" in legend(figure)
    line = next(line.get_xydata() for line in figure.axes[0].get_lines() if line.get_label() == "needed, NCCL s")
    assert dict(line.tolist())[6] == pytest.approx(26 / 15)


def test_a_curve_without_drafts_is_refused(campaign_model):
    with pytest.raises(ConfigurationError, match="no curve"):
        throughput_figure(campaign_model, Asked(), SpecConfig(0, 1, 1))
