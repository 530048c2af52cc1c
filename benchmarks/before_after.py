"""A step of the head in two checkouts of this project, in turns: has a redesign cost time?

Run: python -m benchmarks.before_after OLD/src src     (into results/bench_before_after.json)
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from tammes.lab.record_stamp import stamp, write_record

RESULTS = Path("results/bench_before_after.json")
SHAPES = ((256, 100_000), (2048, 50_000))
TURNS = 3
STEP = """
import json, sys, time, warnings
import torch
from tammes.heads import PrototypeHead
from tammes.losses import ArcFace
warnings.simplefilter("ignore")
found = {}
for n, k in json.loads(sys.argv[1]):
    for kind, options in {"lean": {"block_size": 4096}, "default": {}}.items():
        torch.manual_seed(0)
        head = PrototypeHead(512, k, ArcFace(scale=64.0, margin=0.5), **options)
        z, y, times = torch.randn(n, 512, requires_grad=True), torch.randint(k, (n,)), []
        for _ in range(4):
            start = time.perf_counter()
            head(z, y).backward()
            times.append(time.perf_counter() - start)
            z.grad = head.weight.grad = None
        found[f"n={n}, k={k}, {kind}"] = min(times)
print(json.dumps(found))
"""


def seconds(source: str) -> dict[str, float]:
    """The shortest step of each shape and kind, in a process of its own."""
    command = [sys.executable, "-c", STEP, json.dumps(SHAPES)]
    environment = os.environ | {"PYTHONPATH": str(Path(source).resolve())}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def main(before: str, after: str) -> None:
    """Alternate between the two, and write the ratios of their shortest steps."""
    start = time.perf_counter()
    turns = [(seconds(before), seconds(after)) for _ in range(TURNS)]
    ratios = {
        name: round(min(new[name] for _, new in turns) / min(old[name] for old, _ in turns), 3)
        for name in turns[0][0]
    }
    commit = ["git", "-C", before, "rev-parse", "HEAD"]
    old = subprocess.run(commit, capture_output=True, text=True, check=True).stdout.strip()
    print(json.dumps(ratios, indent=1))
    write_record(
        RESULTS, {"before": old, "after / before": ratios} | stamp(seconds=time.perf_counter() - start)
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
