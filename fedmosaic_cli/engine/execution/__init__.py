"""Execution of clients: in worker threads, in lockstep groups, or stacked into one batched model."""
