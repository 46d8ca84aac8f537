"""Reports on finished and running runs, read from their files only. Nothing here imports torch."""
