"""Inference with trained runs: predict, embed, search, evaluate, export."""
