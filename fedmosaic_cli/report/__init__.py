"""From run directories to comparison tables. Reads files only; nothing here needs torch."""
