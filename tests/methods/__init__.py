"""Tests of the methods: identities, and common mistakes that violate them."""
