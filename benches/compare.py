"""Times bench-tiny here and in eager PyTorch, alternately, and prints both medians and their ratio.

    cargo build --release && python benches/compare.py --python VENV/bin/python --data PATH [--rounds 5]
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile

root = pathlib.Path(__file__).resolve().parent.parent
options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
options.add_argument("--python", default="python3", help="an interpreter that has torch")
options.add_argument("--data", default=root / "docs", help="text to train on")
options.add_argument("--forebay", default=root / "target/release/forebay")
options.add_argument("--rounds", type=int, default=5)
args = options.parse_args()
WARM_UP, STEPS, TOKENS = 3, 12, 8 * 256


def forebay():
    with tempfile.TemporaryDirectory() as folder:
        command = [args.forebay, "train", root / "examples/models/bench-tiny.moe", "--data", args.data, "--json"]
        command += ["--threads", "2", "--steps", str(WARM_UP + STEPS), "--save", f"{folder}/run"]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    steps = [json.loads(line) for line in out.splitlines()]
    return [1e3 * TOKENS / s["tokens_per_s"] for s in steps if "step" in s][WARM_UP:]


def torch():
    out = subprocess.run([args.python, root / "benches/torch_eager.py"], check=True, capture_output=True, text=True).stdout
    return json.loads(out)["step_ms"]


ours, theirs = [], []
for number in range(args.rounds):
    ours.append(statistics.median(forebay()))
    theirs.append(statistics.median(torch()))
    print(f"round {number + 1}: forebay {ours[-1]:.0f} ms, torch {theirs[-1]:.0f} ms, {theirs[-1] / ours[-1]:.2f} times as fast", flush=True)
ratio = statistics.median(t / o for t, o in zip(theirs, ours))
print(f"median of {args.rounds} rounds: {ratio:.2f} times as fast as PyTorch eager")
