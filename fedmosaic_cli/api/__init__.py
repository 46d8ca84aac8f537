"""The Python API: experiments, results, comparisons and reports. `import fedmosaic_cli` exports it."""
