"""From defaults, presets, files and flags to one checked configuration a run. Nothing here needs torch."""
