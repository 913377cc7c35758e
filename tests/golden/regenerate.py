"""Rewrite the golden tables: python -m tests.golden.regenerate (then read the diff before committing it)."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from specsim.cli.main import main

HERE = Path(__file__).parent
TABLE = HERE.parent / "validation" / "data" / "h200x2_allreduce.csv"
MEASURED = HERE.parents[1] / "calibration" / "data"
IN_FORWARD, GATHERS = (MEASURED / f"h200x2p_{name}.csv" for name in ("in_forward_allreduce", "gather"))
COMMANDS = {
    "comm.txt": ["comm"],
    "comm_help.txt": ["comm", "--help"],
    "comm_prior.txt": ["comm", "--link", "pcie", "--ranks", "8", "--layers", "61", "--hidden-size", "7168"],
    "comm_table.txt": [
        "comm",
        str(TABLE),
        "--layers",
        "32",
        "--hidden-size",
        "4096",
        "--draft-layers",
        "1",
        "--engine",
        "sglang",
        "--batch-size",
        "1,16",
    ],
    "comm_in_forward.txt": [
        "comm",
        str(IN_FORWARD),
        str(GATHERS),
        "--layers",
        "32",
        "--hidden-size",
        "4096",
        "--vocab-size",
        "128256",
        "--draft-layers",
        "1",
        "--draft-vocab-size",
        "32000",
        "--engine",
        "vllm",
        "--engine-version",
        "0.24.0",
        "--batch-size",
        "1,64",
        "--num-draft-tokens",
        "1,4",
        "--from",
        "default",
    ],
    "break_even.txt": ["break-even"],
    "break_even_mixed.txt": ["break-even", "--allow-mixed", "--batch-size", "1"],
    "compare.txt": ["compare"],
    "compare_help.txt": ["compare", "--help"],
    "compare_plan.txt": ["compare", "--plan", "3%"],
    "evaluate.txt": ["evaluate"],
    "fit.txt": ["fit"],
    "next_run.txt": ["next-run"],
    "next_run_best.txt": ["next-run", "--question", "best-setting"],
    "next_run_best_rate.txt": [
        "next-run",
        "--question",
        "best-setting",
        "--accept-rate",
        "0.6",
        "--nccl",
        "default",
        "--num-draft-tokens",
        "4",
    ],
    "next_run_help.txt": ["next-run", "--help"],
    "next_run_tree.txt": [
        "next-run",
        "--num-steps",
        "3",
        "--topk",
        "4",
        "--num-draft-tokens",
        "16",
        "--nccl",
        "default",
    ],
    "predict.txt": ["predict", "--num-draft-tokens", "4", "--accept-length", "2.1"],
    "predict_tree.txt": [
        "predict",
        "--num-steps",
        "3",
        "--topk",
        "4",
        "--num-draft-tokens",
        "16",
        "--accept-length",
        "2.2",
    ],
    "simulate.txt": [
        "simulate",
        "--num-draft-tokens",
        "6",
        "--nccl",
        "LL-Ring-SYS",
        "--request-rate",
        "0.05,0.1",
        "--requests",
        "300",
        "--prefill-ms-per-1000-tokens",
        "100",
    ],
    "simulate_help.txt": ["simulate", "--help"],
    "fit_help.txt": ["fit", "--help"],
    "help.txt": ["--help"],
}


def printed(arguments: list[str]) -> str:
    """What a command prints, at a fixed width."""
    result = CliRunner().invoke(main, arguments, catch_exceptions=False, terminal_width=100, prog_name="specsim")
    assert result.exit_code == 0, result.output
    return result.stdout


if __name__ == "__main__":
    for name, arguments in COMMANDS.items():
        (HERE / name).write_text(printed(arguments), encoding="utf-8")
        print(HERE / name)
