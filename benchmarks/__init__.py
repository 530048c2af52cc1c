"""Memory and time of heads, packings and training, compared with other libraries."""
