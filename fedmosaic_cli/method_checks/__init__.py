"""Checks that a method keeps the contract, for `fedmosaic check-method`."""
