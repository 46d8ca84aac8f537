"""Architectures: one file each, every one with a `body` and a `head`."""
