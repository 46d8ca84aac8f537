"""Build and check the configuration of a run from defaults, presets, files and options. Does not import torch."""
