"""Comparison tables as Markdown, LaTeX, CSV, JSON and terminal text."""
