"""Output formats of comparison tables."""
