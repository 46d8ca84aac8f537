"""Tests of the GPU path on a simulated accelerator."""
