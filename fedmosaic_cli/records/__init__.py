"""The files of a partition and of a run: the only place that knows their names. Nothing here needs torch."""
