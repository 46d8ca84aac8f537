"""Figures from partition and run files. `figure_set.figures` is the entry point."""
