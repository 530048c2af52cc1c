"""Shared utilities below all other packages: checks, types, files, threads, memory."""
