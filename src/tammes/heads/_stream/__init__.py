"""Streaming over blocks of classes: forward, backward and the memory they share."""
