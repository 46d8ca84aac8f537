"""Files of partitions and runs: atomic writes, locks, checkpoints. The only package that knows file names. No torch."""
