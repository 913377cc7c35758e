"""The bundled campaign told straight: what its source says, and what its own figures say, like for like."""

from __future__ import annotations

from specsim.breakeven import break_even
from specsim.cost.model import CostModel
from specsim.cost.terms import Cycle
from specsim.prediction import predict
from specsim.quantities import SpecConfig, Workload
from specsim.report.records import Record
from specsim.report.tables import wrapped
from specsim.runs.run import RunSet

ONE = Workload(1)
BYTES_PER_ELEMENT = 2  # the activations that are all-reduced are in 16 bits


def corrections(campaign: RunSet, model: CostModel) -> list[Record]:
    """Each claim of the campaign beside what its runs give: claim, finding, and the finding's figures."""
    default, tuned = model.reference, next(s.label for s in model.settings if s.label != model.reference)
    return [
        _fixed_share(campaign, model, default),
        _proportional(campaign, model, default),
        _wrong_target(campaign, model, default, tuned),
        _had_like_for_like(campaign, model, default, tuned),
        _nccl_gain(campaign, model, default, tuned),
        _nccl_by_tokens(campaign, model, default, tuned),
        _two_instruments(campaign, model, default),
    ]


def _width(num_draft_tokens: int) -> SpecConfig:
    return SpecConfig.of(num_draft_tokens=num_draft_tokens)


def _verify(model: CostModel, num_draft_tokens: int, nccl: str) -> float:
    return float(predict(model, _width(num_draft_tokens), ONE, 1.0, nccl).times.verify_ms)


def _decode(model: CostModel, nccl: str) -> float:
    return float(model.decode(Cycle.of(_width(1), ONE, None), nccl).value[0])


def _fixed_share(campaign: RunSet, model: CostModel, default: str) -> Record:
    wide, narrow = _verify(model, 6, default), _verify(model, 3, default)
    slope = (wide - narrow) / 3
    fixed = narrow - 3 * slope
    return {
        "claim": campaign.claim("fixed-share").text,
        "finding": (
            f"{fixed:.1f} ms fixed + {slope:.3f} ms a token: {fixed / wide:.1%} is fixed at 6 tokens, {fixed / narrow:.1%}"
            f" at 3; {narrow:g}/{wide:g} = {narrow / wide:.1%} is the ratio of two verify times, not a share"
        ),
        "figures": {"verify_fixed_ms": fixed, "verify_per_token_ms": slope, "share_at_6": fixed / wide,
                    "share_at_3": fixed / narrow, "ratio": narrow / wide},
    }  # fmt: skip


def _proportional(campaign: RunSet, model: CostModel, default: str) -> Record:
    claim = campaign.claim("proportional")
    guess = _verify(model, 6, default) * claim.figures["ratio"]
    measured = campaign.run("verify-3").figures["verify_ms"].best
    return {
        "claim": claim.text,
        "finding": f"that would be {guess:.2f} ms; measured {measured:g} ms, since most of it is fixed",
        "figures": {"guess_ms": guess, "measured_ms": measured},
    }


def _wrong_target(campaign: RunSet, model: CostModel, default: str, tuned: str) -> Record:
    mixed = break_even(model, _width(6), ONE, default, baseline_nccl=tuned, allow_mixed=True)
    alike = {nccl: float(break_even(model, _width(6), ONE, nccl).cost_ratio) for nccl in (default, tuned)}
    return {
        "claim": campaign.claim("break-even").text,
        "finding": (
            f"{mixed.cost_ratio:.2f} = {mixed.times.cycle_ms:.2f} ms × 88.8 tok/s takes the cycle under NCCL {default} and the"
            f" baseline under {tuned}; like for like it is {alike[default]:.3f} ({default}) or {alike[tuned]:.3f} ({tuned})"
        ),
        "figures": {"mixed": mixed.cost_ratio, "default": alike[default], "tuned": alike[tuned]},
    }


def _had_like_for_like(campaign: RunSet, model: CostModel, default: str, tuned: str) -> Record:
    had = campaign.run("verify-6").figures["accept_length"].best
    found = {nccl: predict(model, _width(6), ONE, had, nccl) for nccl in (tuned, default)}
    said = " and ".join(
        f"{p.output_tok_s:.1f} tok/s against {p.baseline_tok_s:.1f} ({nccl}, {p.speedup:.3f}×)"
        for nccl, p in found.items()
    )
    chance = break_even(model, _width(6), ONE, tuned, accept_length=had).verdict
    assert chance is not None
    return {
        "claim": f"an accept length of {had:g} was too little",
        "finding": (
            f"like for like it gives {said}: ahead under both, by {found[tuned].speedup - 1:.1%} under {tuned}, which the assumed"
            f" noise judges as: {chance.verdict} ({chance.probability_pays:.0%} that it pays)"
        ),
        "figures": {"tuned_tok_s": found[tuned].output_tok_s, "default_tok_s": found[default].output_tok_s},
    }


def _nccl_gain(campaign: RunSet, model: CostModel, default: str, tuned: str) -> Record:
    before, after = _verify(model, 6, default), _verify(model, 6, tuned)
    gain = _decode(model, default) / _decode(model, tuned) - 1
    return {
        "claim": campaign.claim("nccl-verify").text,
        "finding": f"{before:g} to {after:g} ms is {after / before - 1:+.1%}; the baseline gained {gain:+.1%}",
        "figures": {"verify_change": after / before - 1, "baseline_change": gain},
    }


def _nccl_by_tokens(campaign: RunSet, model: CostModel, default: str, tuned: str) -> Record:
    """The affine difference of section 6, spread over the all-reduces of a forward (two a layer)."""
    card = campaign.model_card
    layers, hidden = int(str(card["layers"])), int(str(card["hidden_size"]))
    at_one = _decode(model, default) - _decode(model, tuned)
    at_six = _verify(model, 6, default) - _verify(model, 6, tuned)
    slope = (at_six - at_one) / 5
    fixed, count, size = at_one - slope, 2 * layers, hidden * BYTES_PER_ELEMENT
    return {
        "claim": "what the NCCL setting saves, by tokens (if decode and verify communicate alike)",
        "finding": (
            f"{at_one:.2f} ms at 1 token, {at_six:.1f} ms at 6: {fixed:.2f} + {slope:.3f}·T ms, over {count} all-reduces"
            f" {fixed / count * 1000:.0f} µs each plus {slope / count * 1000:.1f} µs per {size:,}-byte token"
        ),
        "figures": {"fixed_ms": fixed, "per_token_ms": slope, "all_reduces": count,
                    "fixed_us": fixed / count * 1000, "per_token_us": slope / count * 1000},
    }  # fmt: skip


def _two_instruments(campaign: RunSet, model: CostModel, default: str) -> Record:
    first = {name: figure.best for name, figure in campaign.run("profile-6-first").figures.items()}
    cycle = first["cycle_ms"]
    other = cycle - first["verify_ms"] - first["draft_ms"]
    shares = [first["verify_ms"] / cycle, first["draft_ms"] / cycle, other / cycle]
    return {
        "claim": "the first profile at 6 tokens",
        "finding": (
            f"verify {first['verify_ms']:g} + draft {first['draft_ms']:g} + other {other:.2f} = {cycle:g} ms"
            f" ({', '.join(f'{share:.1%}' for share in shares)}) came before a change of instrument: three verify timings from"
            f" two instruments, so it stands beside the {_verify(model, 6, default):g} ms and is not averaged in"
        ),
        "figures": {"other_ms": other, "verify_share": shares[0], "draft_share": shares[1], "other_share": shares[2]},
    }


def story_text(about: str, table: str, corrected: list[Record]) -> str:
    """The campaign's answer: what it is, the table, then each correction."""
    lines = [wrapped(c["claim"], "  ") + "\n" + wrapped(f"→ {c['finding']}", "    ") for c in corrected]
    title = "What the campaign said, and what its own figures give, like for like:"
    return "\n".join([wrapped(about, ""), "", table, "", title, *lines])
