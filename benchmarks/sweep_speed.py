"""How fast a sweep is: cells per second, peak memory, and a million-cell map from the shell.

    python benchmarks/sweep_speed.py

Times stand beside that of `python -c "import numpy"` in the same run, so that figures of different machines
compare. Each size runs in a process of its own, with one thread, for its peak memory and for speed per core.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time

STEPS, TOPK, WIDTHS = range(1, 17), range(1, 9), range(2, 65)  # 5,910 legal configurations
CONFIGURATIONS = 5910
SIZES = ((10_000_000, True), (10_000_000, False), (100_000_000, False))
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
SHELL_MAP = (
    "from specsim.cli.main import main; main(['sweep', '--num-steps', '1-16', '--topk', '1-8', '--num-draft-tokens',"
    " '2-64', '--batch-size', '1-85', '--accept-rate', '0.6'])"
)


def main() -> None:
    if len(sys.argv) > 1:
        evaluate(int(sys.argv[1]), keep_cells=sys.argv[2] == "True")
        return
    numpy = shell_seconds("import numpy")
    print(f'python -c "import numpy": {numpy * 1000:.0f} ms, the unit of what follows')
    for cells, keep in SIZES:
        subprocess.run([sys.executable, __file__, str(cells), str(keep)], env={**os.environ, **ONE_THREAD}, check=True)
    startup = shell_seconds("from specsim.cli.main import main; main(['sweep', '--num-steps', '2', '--topk', '1'])")
    million = shell_seconds(SHELL_MAP)
    print(f"1,004,700-cell map from the shell: {million * 1000:.0f} ms, {million / numpy:.1f} × numpy;", end=" ")
    print(f"of which beyond start-up ({startup * 1000:.0f} ms): {(million - startup) * 1000:.0f} ms")


def shell_seconds(code: str) -> float:
    """The least of five runs of a Python process."""
    return min(timed([sys.executable, "-c", code]) for _ in range(5))


def timed(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def evaluate(cells: int, *, keep_cells: bool) -> None:
    """Sweep about so many cells of one profile, every one with a baseline, and say how it went."""
    numpy = shell_seconds("import numpy")
    from specsim.sweep import Axes, assumed_law, sweep

    axes = Axes((*STEPS,), (*TOPK,), (*WIDTHS,), tuple(range(1, 1 + cells // CONFIGURATIONS)), ("default",))
    model = profile()
    before = peak_mib()
    runs = []
    for _ in range(2):
        start = time.process_time()
        found = sweep(model, assumed_law(0.6), axes, keep_cells=keep_cells)
        for quantity in ("output_tok_s", "speedup", "margin", "feasible") if keep_cells else ():
            getattr(found, quantity)  # derived when asked for: part of the answer, so part of the time
        runs.append(time.process_time() - start)
        evaluated = found.evaluated
        del found
    seconds = min(runs)
    kind = "arrays kept" if keep_cells else "summary and best kept"
    print(
        f"{evaluated:,} cells, {kind}: {evaluated / seconds / 1e6:.1f} million a second and core,"
        f" {seconds:.2f} s = {seconds / numpy:.1f} × numpy; peak {peak_mib():.0f} MiB (before the sweep {before:.0f})"
    )


def profile():
    """A server timed at four batch sizes, with and without speculation."""
    from specsim.fitting import fit
    from specsim.quantities import Setup, SpecConfig, Workload
    from specsim.runs.run import Figure, Run

    setup, runs = Setup(engine="sglang"), []
    for batch in (1, 4, 16, 64):
        plain = {"decode_ms": Figure(14.0 + 0.05 * batch)}
        runs.append(Run(f"plain-{batch}", setup, "default", Workload(batch), False, figures=plain))
        for steps, topk, width in ((2, 1, 3), (5, 1, 6), (3, 4, 12), (6, 4, 32)):
            verify, draft = 16.0 + 0.05 * batch * width, 0.2 + (0.3 + 0.001 * batch * topk) * (steps - 1)
            uneven = 1 + 0.01 * (-1) ** (steps + width + batch)
            figures = {
                "verify_ms": Figure(verify * uneven),
                "draft_ms": Figure(draft),
                "cycle_ms": Figure(verify + draft + 0.5),
            }
            spec = SpecConfig(steps, topk, width, "eagle3")
            runs.append(Run(f"{batch}-{width}", setup, "default", Workload(batch), True, spec=spec, figures=figures))
    return fit(runs).model


def peak_mib() -> float:
    """Peak memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform != "darwin" else 1024**2)


if __name__ == "__main__":
    main()
