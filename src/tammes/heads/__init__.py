"""Prototype heads: the last layer and the loss in one module; dense, streamed, sampled and sharded.

- `PrototypeHead`, and `ShardedPrototypeHead` for several processes;
- `RowSGD`, `RowAdamW`: optimizers for the sparse gradients of sampled heads; `clip_grad_norm_`;
- `save_head`, `load_head`: checkpoints for any number of processes;
- `export_head`, `import_head`, `save_prototypes`: prototypes as single files, also from other libraries.
"""

from tammes._common.lazy import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
