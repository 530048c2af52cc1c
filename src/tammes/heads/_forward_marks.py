"""Distinguish forward passes that activation checkpointing recomputes from new ones."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

import torch

T = TypeVar("T")

REMEMBERING = threading.Lock()
"""Held while a pass is looked up. Shared by all heads, because a module with a lock cannot be copied."""

LARGEST = 4096
"""Maximum number of forward passes to remember until the weight changes."""


class ForwardMarks(Generic[T]):
    """What each forward pass used, in case it is recomputed in the backward pass.

    `torch.utils.checkpoint` restores torch's random state before it recomputes a forward pass, so the
    generator's next number identifies the pass. Marks are kept until the weight changes, which cannot happen
    between a forward pass and its backward pass.
    """

    def __init__(self) -> None:
        self._used: dict[tuple[int, int], T] = {}
        self._version = 0

    def recall(self, version: int, rows: int, make: Callable[[], T]) -> T:
        """What this forward pass used originally, or `make()` if it is new.

        `version` is that of the weight.
        """
        mark = int(torch.randint(2**62, (), device="cpu")), rows
        with REMEMBERING:
            if version != self._version:
                self._version, self._used = version, {}
            if mark not in self._used:
                if torch._C._current_graph_task_id() != -1:
                    raise RuntimeError(
                        "A head with running statistics or random margins was recomputed in the backward "
                        "pass without restoring torch's random state, so it would use other values. Use "
                        "torch.utils.checkpoint with preserve_rng_state=True, the default."
                    )
                if len(self._used) == LARGEST:
                    del self._used[next(iter(self._used))]
                self._used[mark] = make()
            return self._used[mark]
