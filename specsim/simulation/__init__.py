"""Simulators: cycles drawn from an acceptance law and priced by a cost model; rows out, statistics after."""

from specsim.simulation.acceptance import Drawer
from specsim.simulation.requests import Benchmark, CycleTime, Requests, simulate_requests

__all__ = ["Benchmark", "CycleTime", "Drawer", "Requests", "simulate_requests"]
