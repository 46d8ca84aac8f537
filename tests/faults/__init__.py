"""Fault injection: after a failure nothing is lost and nothing is silently wrong."""
