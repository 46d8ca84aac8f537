"""Clients of one architecture trained together, on stacked weights."""
