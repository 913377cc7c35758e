"""Simulators: cycles drawn from an acceptance law and priced by a cost model; rows out, statistics after."""
