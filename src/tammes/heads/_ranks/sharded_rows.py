"""The rows of all ranks as one `DTensor`, for torch.distributed.checkpoint, FSDP2 and optimizers."""

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DeviceMesh, DTensor, Shard

from tammes.heads._ranks.collectives import Group


def as_dtensor(rows: Tensor, num_rows: int, mesh: DeviceMesh) -> DTensor:
    """Wrap `rows` as this rank's shard of `num_rows` rows over `mesh`; shares memory."""
    whole = torch.empty(num_rows, *rows.shape[1:], device="meta")
    return DTensor.from_local(
        rows, mesh, [Shard(0)], run_check=False, shape=whole.shape, stride=whole.stride()
    )


class ShardedRows(DTensor):
    """The `DTensor` in a `state_dict`. Pickling it raises, because the file would lack the other ranks' rows.

    A plain DTensor silently pickles its local shard, and most frameworks call `torch.save` on rank 0 only.
    """

    @classmethod
    def of(cls, rows: DTensor) -> "ShardedRows":
        """Wrap `rows`; shares memory, detached from autograd."""
        return cls(rows.to_local().detach(), rows._spec, requires_grad=False)

    def __deepcopy__(self, memo: dict[int, Any]) -> "ShardedRows":
        return type(self)(self.to_local().clone(), self._spec, requires_grad=False)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            f"This rank has only {len(self.to_local())} of the {len(self)} rows of a sharded weight, so a "
            "file would lose those of the other ranks. Save all rows with tammes.heads.save_head or "
            "torch.distributed.checkpoint.save, or gather them first, on all ranks: torch.distributed."
            "checkpoint.state_dict.get_model_state_dict(..., options=StateDictOptions(full_state_dict=True))."
        )


def own_rows(value: Tensor, mesh: DeviceMesh, class_range: tuple[int, int], num_rows: int) -> Tensor:
    """This rank's rows of a `state_dict` value: a DTensor, all rows, or only this rank's rows.

    A DTensor with another sharding is gathered; all ranks must then call this together.
    """
    if isinstance(value, DTensor):
        there = value.device_mesh
        same = there.ndim == 1 and there.size() == mesh.size()
        if same and value.placements == (Shard(0),) and there.get_local_rank() == mesh.get_local_rank():
            return value.to_local()
        value = value.full_tensor()
    return value[slice(*class_range)] if len(value) == num_rows else value


def check_mesh(
    mesh: DeviceMesh,
    process_group: Group | None,
    sample_rate: float | None,
    device: torch.device | str | None,
) -> None:
    """Raise if a `ShardedPrototypeHead` cannot use `mesh` with the other arguments."""
    if process_group is not None:
        raise ValueError("mesh and process_group are mutually exclusive. Pass one of them.")
    if mesh.ndim != 1:
        raise ValueError(
            f"mesh must have one dimension, got {mesh.ndim}: {mesh.mesh_dim_names}. Select one by name: "
            'mesh=device_mesh["classes"].'
        )
    if sample_rate is not None:
        raise ValueError(
            "sample_rate requires sparse gradients, which DTensors do not support. Pass "
            "process_group=mesh.get_group() instead of mesh."
        )
    device = torch.device(device or mesh.device_type)
    if device.type != mesh.device_type:
        raise ValueError(f"device must match the mesh's device type, {mesh.device_type}, got {device}.")
