"""Runs in, CostModel out, with what the data could and could not tell."""

from specsim.fitting.fit import ASSUMED_NOISE, Fit, Residual, fit, timed_settings

__all__ = ["ASSUMED_NOISE", "Fit", "Residual", "fit", "timed_settings"]
