"""Prototype heads: the last layer and the loss, dense, streamed and sharded."""

from tammes.heads.prototype import PrototypeHead

__all__ = ["PrototypeHead"]
