"""Accept length against training samples: a line in the logarithm, and what a few points allow to say (eq. 25)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from specsim.errors import NotIdentifiedError
from specsim.quantities import FloatArray
from specsim.uncertainty import quantile, ratio_interval

ASSUMED_LENGTH_ERROR = 0.1
"""Standard error of an accept length that comes without one: the campaign gives ranges of 2.0 to 2.2, 1.8 to 2.1
and 2.0 to 2.5 for three five-prompt benchmarks, which as uniform laws are 0.06 to 0.14."""

CAVEAT = (
    "a line in log10(samples) is a habit of such curves, not a law: it knows nothing of data quality, of the"
    " drafter's size, or of where the curve flattens, and points of different teams or models need not share one"
)


@dataclass(frozen=True)
class ScalingPoint:
    """An accept length (bonus included) after so many training samples, with its standard error if one is known."""

    samples: int
    accept_length: float
    error: float | None = None
    note: str = ""


@dataclass(frozen=True)
class ScalingFit:
    """L = p + q·log10(samples): (p, q), their covariance, and what the intervals rest on.

    Intervals rest on the points' errors, stated or assumed. Where the points scatter more about the line than
    those allow, `inflation` says how much wider the errors were made, and Student's t of the few degrees of
    freedom that say so is used. With two points nothing tests the line.
    """

    coefficients: tuple[float, float]
    covariance: tuple[tuple[float, float], tuple[float, float]]
    inflation: float
    residual_dof: int
    points: tuple[ScalingPoint, ...]

    @property
    def error_assumed(self) -> bool:
        """Whether a point came without an error of its own."""
        return any(not point.error for point in self.points)

    def accept_length(self, samples: float) -> tuple[float, float, float]:
        """Expected accept length after so many samples: value, low and high end (eq. 25, 11)."""
        row = np.array([1.0, np.log10(samples)])
        value = float(row @ np.array(self.coefficients))
        reach = quantile(self.residual_dof) * float(np.sqrt(row @ np.array(self.covariance) @ row))
        return max(value, 1.0), max(value - reach, 1.0), max(value + reach, 1.0)

    def samples_needed(self, accept_length: float) -> tuple[float, float, float]:
        """Samples at which the line reaches a length, with Fieller's range; an end that is open is 0 or inf."""
        intercept, slope = self.coefficients
        (var_p, cov), (_, var_q) = self.covariance
        half_width = quantile(self.residual_dof)
        if slope <= half_width * np.sqrt(var_q):  # the line may be flat or falling: any number, or none
            return (_power((accept_length - intercept) / slope) if slope > 0 else np.inf), 0.0, np.inf
        top, bottom = np.array([accept_length - intercept]), np.array([slope])
        low, high = ratio_interval(top, bottom, (np.array([var_p]), np.array([var_q]), np.array([-cov])), half_width)
        return _power(float((top / bottom)[0])), _power(float(low[0])), _power(float(high[0]))


def fit_scaling(points: Iterable[ScalingPoint]) -> ScalingFit:
    """Fit eq. 25 to two or more points by weighted least squares.

    Points that scatter more than their errors say widen those errors to fit (Birge's ratio). Raises
    NotIdentifiedError with fewer than two distinct sample counts.
    """
    points = tuple(points)
    if len({point.samples for point in points}) < 2:
        raise NotIdentifiedError(
            "accept length against training samples needs two or more points at different sample counts"
        )
    errors = np.array([p.error or ASSUMED_LENGTH_ERROR for p in points])  # equal repeats are not free of error
    rows = np.column_stack([np.ones(len(points)), np.log10([p.samples for p in points])]) / errors[:, None]
    target = np.array([p.accept_length for p in points]) / errors
    inverse = np.linalg.pinv(rows)
    coefficients = inverse @ target
    dof = len(points) - 2
    residuals = target - rows @ coefficients
    scale = max(1.0, float(residuals @ residuals) / dof) if dof else 1.0
    covariance: FloatArray = inverse @ inverse.T * scale
    p, q = (float(value) for value in coefficients)
    (pp, pq), (qp, qq) = ((float(v) for v in row) for row in covariance)
    return ScalingFit((p, q), ((pp, pq), (qp, qq)), float(np.sqrt(scale)), dof if scale > 1.0 else 0, points)


def _power(exponent: float) -> float:
    """10 to the exponent; beyond what a double holds, infinity."""
    return float(10.0**exponent) if exponent < 300 else float("inf")
