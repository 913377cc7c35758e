"""specsim: what accept length speculative decoding needs, before the server is started."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specsim.acceptance import chain_accept_length, required_accept_rate
    from specsim.breakeven import BreakEven, break_even
    from specsim.cost.bare_forwards import BareForwards
    from specsim.cost.model import CostModel
    from specsim.errors import SpecsimError
    from specsim.evaluation import Evaluation, evaluate
    from specsim.fitting import Fit, fit
    from specsim.prediction import Prediction, predict
    from specsim.quantities import Setup, SpecConfig, Workload
    from specsim.runs.bare_forwards import load_bare_forwards
    from specsim.runs.files import load_campaign, load_runs
    from specsim.runs.run import Run

_HOMES = {
    "BareForwards": "specsim.cost.bare_forwards",
    "BreakEven": "specsim.breakeven",
    "CostModel": "specsim.cost.model",
    "Evaluation": "specsim.evaluation",
    "Fit": "specsim.fitting",
    "Prediction": "specsim.prediction",
    "Run": "specsim.runs.run",
    "Setup": "specsim.quantities",
    "SpecConfig": "specsim.quantities",
    "SpecsimError": "specsim.errors",
    "Workload": "specsim.quantities",
    "break_even": "specsim.breakeven",
    "chain_accept_length": "specsim.acceptance",
    "evaluate": "specsim.evaluation",
    "fit": "specsim.fitting",
    "load_bare_forwards": "specsim.runs.bare_forwards",
    "load_campaign": "specsim.runs.files",
    "load_runs": "specsim.runs.files",
    "predict": "specsim.prediction",
    "required_accept_rate": "specsim.acceptance",
}

__all__ = [
    "BareForwards",
    "BreakEven",
    "CostModel",
    "Evaluation",
    "Fit",
    "Prediction",
    "Run",
    "Setup",
    "SpecConfig",
    "SpecsimError",
    "Workload",
    "break_even",
    "chain_accept_length",
    "evaluate",
    "fit",
    "load_bare_forwards",
    "load_campaign",
    "load_runs",
    "predict",
    "required_accept_rate",
]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used, so that `specsim --help` loads none of the numerics."""
    if name not in _HOMES:
        raise AttributeError(f"module 'specsim' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
