"""The formulas of co-training as pure functions: trust, expertise, logit adjustment, cross-fitting and clustering."""

NO_LABEL = -1
"""Marks a public example without a consensus label."""
