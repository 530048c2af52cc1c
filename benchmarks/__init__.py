"""Memory and time of heads, packings and training, side by side with their peers."""
