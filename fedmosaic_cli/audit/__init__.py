"""Membership-inference audit of finished runs."""
