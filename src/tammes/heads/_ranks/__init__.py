"""Communication between the ranks of a sharded head."""
