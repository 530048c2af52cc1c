"""The interface to heads: labels, statistics and the loss of a batch."""
