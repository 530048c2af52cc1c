"""One rank of a test, run by path in a forked process: JOB says which function of which file to call."""

import datetime
import os
import runpy
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

JOB: dict[str, Any]


def main(job: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    rank, folder = job["rank"], Path(job["folder"])
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"tcp://127.0.0.1:{job['port']}",
            rank=rank,
            world_size=job["world_size"],
            timeout=datetime.timedelta(seconds=job["timeout"]),
        )
        result = runpy.run_path(job["file"])[job["function"]](rank, *job["arguments"])
        torch.save(result, folder / f"{rank}.pt")
        dist.destroy_process_group()
    except Exception:
        (folder / f"{rank}.error").write_text(traceback.format_exc())


if __name__ == "__main__":
    main(JOB)
