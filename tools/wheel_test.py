"""Smoke test of an installed wheel; `make wheel-test` runs it in an empty environment.

Without arguments it tests the library, with "lab" also the command line.
"""

import subprocess
import sys
import tempfile
from importlib import metadata, util
from pathlib import Path


def library() -> None:
    """Import, train ten steps, save and load a head, pack."""
    import torch

    import tammes

    assert "site-packages" in tammes.__file__, f"not the wheel: {tammes.__file__}"
    assert metadata.version("tammes") == tammes.__version__
    assert (Path(tammes.__file__).parent / "py.typed").is_file()
    torch.manual_seed(0)
    x, y = torch.randn(60, 8) + 3 * torch.eye(8)[torch.arange(60) % 3], torch.arange(60) % 3
    backbone, head = torch.nn.Linear(8, 4), tammes.PrototypeHead(4, 3, "CosFace(s=8, m=0.2) + 0.5*R_sm")
    optimizer = torch.optim.Adam([{"params": backbone.parameters()}, *head.param_groups()], lr=0.05)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = head(backbone(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0], losses
    with tempfile.TemporaryDirectory() as folder:
        tammes.save_head(f"{folder}/head", head, classes=["a", "b", "c"])
        other = tammes.PrototypeHead(4, 3, "CosFace(s=8, m=0.2)")
        tammes.load_head(f"{folder}/head", other)
        assert torch.equal(head.weight, other.weight)
    assert abs(tammes.pack(8, 3).angle - 1.3065) < 1e-3


def lab() -> None:
    """Run the command line: --version, and a short demo with its report."""
    tool = Path(sys.executable).with_name("tammes")
    assert subprocess.check_output([tool, "--version"], text=True).startswith("tammes ")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([tool, "demo", "--epochs", "2", "--out", f"{folder}/demo"], check=True)
        assert (Path(folder) / "demo" / "report.html").stat().st_size > 10_000


if __name__ == "__main__":
    library()
    if "lab" in sys.argv:
        lab()
    else:
        assert util.find_spec("tyro") is None, "the environment is not empty"
    print(f"{metadata.version('tammes')} works in this environment.")
