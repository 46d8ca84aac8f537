"""Partitioning a data set into a public set and one shard per client. No torch."""
