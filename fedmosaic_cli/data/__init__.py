"""Data sets, and how they are dealt to clients. NumPy only: nothing here needs torch."""
