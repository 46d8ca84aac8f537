"""Figures from partition and run files. `figure_set.FigureSet` is the entry point."""
