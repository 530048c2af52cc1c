"""The processes of a run: one, or several under `torchrun`, each with its shard of the head.

A lock keeps the processes of other runs out of its folder.
"""

import errno
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tammes._common.checks import at_least
from tammes.heads import PrototypeHead, ShardedPrototypeHead
from tammes.heads._beside_weight import copy_beside_weight
from tammes.lab.training.rank_failures import connected

CPU = torch.device("cpu")


@dataclass(frozen=True)
class World:
    """Rank and world size of this process, and its collectives."""

    rank: int = 0
    size: int = 1
    device: torch.device = CPU

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which writes and prints."""
        return self.rank == 0

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """All-reduce each flag by logical or."""
        if self.size == 1:
            return flags
        raised = torch.tensor(flags, dtype=torch.uint8, device=self.device)
        dist.all_reduce(raised, dist.ReduceOp.MAX)
        return tuple(bool(flag) for flag in raised.tolist())

    def from_first(self, value: float) -> float:
        """Broadcast a number from rank 0."""
        if self.size == 1:
            return value
        number = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.broadcast(number, 0)
        return number.item()

    def share(self, tensor: Tensor) -> None:
        """Broadcast `tensor` from rank 0, in place."""
        if self.size > 1:
            dist.broadcast(tensor, 0)

    def gather(self, value: Any) -> list[Any]:
        """Gather the values of all ranks, in rank order."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def on_first(self, action: Callable[[], Any]) -> None:
        """Run `action` on rank 0. An error there raises on every rank."""
        error: Exception | None = None
        if self.first:
            try:
                action()
            except Exception as caught:
                error = caught
        error = self.gather(error)[0]
        if error is not None:
            raise error

    @contextmanager
    def first_goes_first(self) -> Iterator[None]:
        """Run the body on rank 0 first, then on the others, so that they find what it downloads."""
        if not self.first:
            self.wait()
        yield
        if self.first:
            self.wait()

    def wait(self) -> None:
        """Barrier."""
        if self.size > 1:
            dist.barrier()


ALONE = World()


@contextmanager
def world(device: str) -> Iterator[World]:
    """The process group of `torchrun`, or this process alone."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield World(device=choose_device(device))
        return
    local = choose_device(device, int(os.environ["LOCAL_RANK"]))
    if local.type == "cuda":
        torch.cuda.set_device(local)
    with connected("nccl" if local.type == "cuda" else "gloo", size):
        yield World(dist.get_rank(), dist.get_world_size(), local)


@contextmanager
def determinism(wanted: bool) -> Iterator[None]:
    """Use only deterministic algorithms. An operation without one raises."""
    if not wanted or torch.are_deterministic_algorithms_enabled():
        yield  # setting what is set already would import the compiler, which takes as long as torch
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # required for deterministic cuBLAS
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def choose_device(name: str, local_rank: int = 0) -> torch.device:
    """The device `name`. "auto" is an accelerator if there is one, a separate one for each rank."""
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


def native_bf16(device: torch.device) -> bool:
    """Whether `device` computes in bf16 by itself; where it is emulated, it is slower than float32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type != "cpu":
        return False
    found = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return any(found.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16"))


def shard(head: PrototypeHead, world: World) -> PrototypeHead:
    """The head to train: `head` itself, or with several processes this rank's shard of it."""
    if world.size == 1:
        return head
    shares = ShardedPrototypeHead(
        head.in_features,
        head.num_classes,
        head.objective,
        class_counts=head.class_counts,
        class_weight=head.class_weight,
        trainable=head.weight.requires_grad,
        centers=head.centers,
        sample_rate=None if head.sampler is None else head.sampler.rate,
        device=world.device,
    )
    with torch.no_grad():
        shares.weight.copy_(rows_here(head.weight, shares))
    copy_beside_weight(head, shares)
    return shares


def rows_here(whole: Tensor, head: PrototypeHead) -> Tensor:
    """The rows of this rank's classes."""
    first, last = head.class_range
    return whole[first:last]


def rows_of_all(own: Tensor, head: PrototypeHead) -> Tensor:
    """Gather the rows of all ranks' classes on every rank. All ranks must call it."""
    if not isinstance(head, ShardedPrototypeHead):
        return own
    whole = own.new_empty(head.num_classes, *own.shape[1:])
    first = 0
    for rank, size in enumerate(head.class_sizes):
        part = whole[first : first + size]
        if rank == dist.get_rank():
            part.copy_(own)
        if size:
            dist.broadcast(part, rank)
        first += size
    return whole


LOCK = ".lock"
NO_LOCKS = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK}
"""Errors of a file system without locks."""

_held: set[int] = set()
"""File descriptors of the locks held by this process."""


class FolderInUseError(Exception):
    """Raised if another process is training in the folder."""

    exit_code = 2


@contextmanager
def locked(folder: Path, here: World) -> Iterator[None]:
    """Lock `folder` against other processes. All ranks must call it; rank 0 holds the lock.

    The folder is created if missing, and removed again if it is still empty at the end. If the process dies,
    the operating system releases the lock.
    """
    with ExitStack() as stack:
        here.on_first(lambda: stack.enter_context(_locked(folder)))
        yield


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"Cannot create the folder {folder}: {error.strerror}.") from error
    lock = folder / LOCK
    descriptor = _acquire(lock)
    _held.add(descriptor)
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        _held.discard(descriptor)
        os.close(descriptor)
        with suppress(OSError):  # not empty
            for path in missing:
                path.rmdir()


def _acquire(lock: Path) -> int:
    """Lock the file `lock` and return its descriptor."""
    import fcntl  # not on Windows, where trained networks can still be evaluated

    while True:
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            raise OSError(f"Cannot write {lock}: {error.strerror}.") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                owner = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
                os.close(descriptor)
                raise _in_use(lock.parent, owner) from error
            warnings.warn(
                f"{lock.parent} is on a file system without locks. Do not train in it from another process.",
                stacklevel=2,
            )
        if _is_at(lock, descriptor):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            return descriptor
        os.close(descriptor)  # the previous owner removed the file after it was opened here


def _is_at(path: Path, descriptor: int) -> bool:
    """Whether `path` is still the open file."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _in_use(folder: Path, owner: str) -> FolderInUseError:
    by = f"process {owner}" if owner.isdecimal() else "another process"
    return FolderInUseError(
        f"{folder} is in use: {by} is training in it. Wait for it to end, or choose another folder with "
        "--out."
    )


def _release_in_child() -> None:
    """Close inherited locks: a lock lasts while any process has it open, and workers may outlive a run."""
    for descriptor in _held:
        with suppress(OSError):
            os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_in_child)
