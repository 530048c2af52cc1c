"""One process, or several under `torchrun`: who am I, and what do we agree on."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from tammes.checks import at_least

CPU = torch.device("cpu")


@dataclass(frozen=True)
class World:
    """This process among those of a run."""

    rank: int = 0
    size: int = 1
    device: torch.device = CPU

    @property
    def first(self) -> bool:
        """Whether this is the process that writes and prints."""
        return self.rank == 0

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """Each flag raised if any process raises it."""
        if self.size == 1:
            return flags
        raised = torch.tensor(flags, dtype=torch.uint8, device=self.device)
        dist.all_reduce(raised, dist.ReduceOp.MAX)
        return tuple(bool(flag) for flag in raised.tolist())

    def from_first(self, value: float) -> float:
        """The first process's number."""
        if self.size == 1:
            return value
        number = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.broadcast(number, 0)
        return number.item()

    def share(self, tensor: torch.Tensor) -> None:
        """Overwrite `tensor` with the first process's."""
        if self.size > 1:
            dist.broadcast(tensor, 0)

    def gather(self, value: Any) -> list[Any]:
        """Every process's value, in the order of ranks."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    @contextmanager
    def first_goes_first(self) -> Iterator[None]:
        """The first process does what is within before the others do; what it downloads they find."""
        if not self.first:
            self.wait()
        yield
        if self.first:
            self.wait()

    def wait(self) -> None:
        """Until all are here."""
        if self.size > 1:
            dist.barrier()


ALONE = World()


@contextmanager
def world(device: str) -> Iterator[World]:
    """The world that `torchrun` made, or this process alone."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield World(device=choose_device(device))
        return
    local = choose_device(device, int(os.environ["LOCAL_RANK"]))
    if local.type == "cuda":
        torch.cuda.set_device(local)
    dist.init_process_group("nccl" if local.type == "cuda" else "gloo")
    try:
        yield World(dist.get_rank(), dist.get_world_size(), local)
    finally:
        dist.destroy_process_group()


@contextmanager
def determinism(wanted: bool) -> Iterator[None]:
    """Only deterministic algorithms within; an operation that has none is an error."""
    before = torch.are_deterministic_algorithms_enabled()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS repeats itself only so
    torch.use_deterministic_algorithms(wanted or before)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def choose_device(name: str, local_rank: int = 0) -> torch.device:
    """The device called `name`; "auto" is an accelerator where there is one, each rank its own."""
    if name == "auto":
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        name = accelerator.type if accelerator else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"There is no device {name!r} here: {reason} Use device='auto' or 'cpu'.") from error
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", at_least("LOCAL_RANK", local_rank, 0))
    return device
