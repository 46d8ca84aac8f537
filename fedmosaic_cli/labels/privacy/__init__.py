"""Differential privacy for shared labels: mechanisms, noise settings, accounting and reports."""
