"""Runs in, CostModel out, with what the data could and could not tell."""

from specsim.fitting.fit import Fit, Residual, fit

__all__ = ["Fit", "Residual", "fit"]
