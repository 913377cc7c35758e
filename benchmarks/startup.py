"""How long the command line takes to start, as ratios to importing numpy, all measured in this run.

python benchmarks/startup.py
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

ROUNDS = 15
SPECSIM = Path(sysconfig.get_path("scripts")) / "specsim"
COMMANDS = {
    "import numpy": [sys.executable, "-c", "import numpy"],
    "specsim --help": [str(SPECSIM), "--help"],
    "specsim break-even": [str(SPECSIM), "break-even"],
}
# numpy was compiled when it was installed; where Python is told not to keep bytecode, specsim would compile at each start
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | {
    "NO_COLOR": "1"
}
LIMITS = {"specsim --help": 1.5, "specsim break-even": 4.0}


def seconds(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=ENVIRONMENT)
    return time.perf_counter() - start


def main() -> None:
    for command in COMMANDS.values():
        seconds(command)  # warm the file cache; what is measured is a cold process
    rounds = [{name: seconds(command) for name, command in COMMANDS.items()} for _ in range(ROUNDS)]
    base = statistics.median(r["import numpy"] for r in rounds)
    print(f"python -c 'import numpy': {base * 1000:.0f} ms (median of {ROUNDS})")
    for name, limit in LIMITS.items():
        ratios = [r[name] / r["import numpy"] for r in rounds]
        print(
            f"{name}: {statistics.median(ratios):.2f} times that (limit {limit:g}; {min(ratios):.2f} to {max(ratios):.2f})"
        )


if __name__ == "__main__":
    main()
