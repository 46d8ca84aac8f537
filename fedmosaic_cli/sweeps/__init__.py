"""Studies of many runs: which runs they need, and how to run them on one machine or on a Ray cluster."""
