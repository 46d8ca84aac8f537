"""Figures of finished runs, drawn from their files. `album.figures` is the way in."""
