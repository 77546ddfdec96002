"""Is there anything left in a run's columns that says how far off its prediction is?

    forebay validate runs.csv --json > told.json
    python sim/measure/residuals.py runs.csv told.json

For each system with 20 runs or more: the errors as they are, and what would be left if a smooth function of the run's sizes and degrees were added to the logarithm of each prediction. That
function is the mean of a Gaussian process (Rasmussen and Williams, 2006, section 2.2; squared exponential, one length for all columns), each run by the one that has not seen it (section
5.4.2). Length and noise are those of a grid that leave the least at the 90th percentile, so that what is printed is on the hopeful side; runs that are there twice tell of each other. Where it leaves as much as there is, no term that goes by
these columns would help. Needs numpy.
"""
import csv
import json
import sys

import numpy as np

LENGTHS = (0.5, 1.0, 1.5, 2.0, 3.0)
NOISES = (0.1, 0.3, 1.0, 3.0)
FEWEST = 20


def number(row, column):
    try:
        return max(float(row.get(column) or 1), 1.0)
    except ValueError:
        return 1.0


def features(row):
    """Binary logarithms of sizes and degrees."""
    degrees = [number(row, name) for name in ("tp", "pp", "cp")]
    dp = max(number(row, "n_devices") / np.prod(degrees), 1.0)
    micro = number(row, "gbs") / dp / number(row, "mbs")
    sizes = [number(row, name) for name in ("hidden", "layers", "seq_len", "vocab", "experts", "ep", "vpp", "mbs")]
    return np.log2([*sizes, *degrees, dp, max(micro, 1.0)])


def left_out(x, y):
    """Residuals by the hopeful best of the grid, each predicted without its own run."""
    x = x[:, x.std(0) > 1e-9]
    x = (x - x.mean(0)) / x.std(0)
    distance = ((x[:, None] - x[None]) ** 2).sum(-1)
    centred, best = y - y.mean(), None
    for length in LENGTHS:
        for noise in NOISES:
            inverse = np.linalg.inv(np.exp(-distance / (2 * length**2)) + noise * np.eye(len(y)))
            rest = np.abs(np.expm1(inverse @ centred / np.diag(inverse)))
            if best is None or np.quantile(rest, 0.9) < np.quantile(best, 0.9):
                best = rest
    return best


def main():
    table, told = sys.argv[1:]
    with open(table, newline="") as file:
        lowered = [{(name or "").strip().lower(): value for name, value in row.items()} for row in csv.DictReader(file)]
        if any("id" not in row for row in lowered):
            sys.exit(f"{table} has no column `id`, by which its runs are found")
        rows = {row["id"]: row for row in lowered}
    with open(told) as file:
        runs = json.load(file)["rows"]
    print(f"{'system':24} {'runs':>5}   errors as they are   with what their columns say")
    for system in sorted({run["system"] for run in runs}):
        of = [run for run in runs if run["system"] == system]
        if len(of) < FEWEST:
            continue
        errors = np.array([abs(run["error"]) for run in of])
        x = np.array([features(rows[run["id"]]) for run in of])
        rest = left_out(x, np.log([run["predicted_s"] / run["measured_s"] for run in of]))
        shown = [f"{100 * np.median(e):6.1f} / {100 * np.quantile(e, 0.9):4.1f} %" for e in (errors, rest)]
        print(f"{system:24} {len(of):5}   {shown[0]:18}   {shown[1]}")


if __name__ == "__main__":
    main()
