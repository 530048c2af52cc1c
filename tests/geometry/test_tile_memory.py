"""What is streamed stays small: peak memory in a fresh process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

STATUS = Path("/proc/self/status")

MEASURE = """
import json, torch
from pathlib import Path
from tammes.geometry.energy import riesz_energy
from tammes.geometry.margins import class_margin, sample_margins

def kilobytes(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))

def peak(run):
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = kilobytes("VmRSS")
    run()
    return (kilobytes("VmHWM") - before) / 1024

torch.set_num_threads(1)
w, small = torch.randn(12_001, 64), torch.randn(5_001, 64, requires_grad=True)
z, y = torch.randn(12_001, 64, requires_grad=True), torch.randint(12_001, (12_001,))
class_margin(w[:3000])
print(json.dumps({
    "class_margin": peak(lambda: class_margin(w)),
    "sample_margins": peak(lambda: sample_margins(z, w, y).sum().backward()),
    "riesz_energy": peak(lambda: riesz_energy(small, 1.0).backward()),
}))
"""


@pytest.mark.skipif(not STATUS.exists(), reason="reads Linux's account of peak memory")
def test_megabytes_beyond_the_inputs():
    command = [sys.executable, "-c", MEASURE]
    peaks = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=300).stdout)
    # The float64 cosines of 12,001 classes are 1,152 MB; those of 5,001 are 200, and autograd keeps several.
    budget = {"class_margin": 100, "sample_margins": 100, "riesz_energy": 150}
    assert all(peaks[name] < megabytes for name, megabytes in budget.items()), peaks
