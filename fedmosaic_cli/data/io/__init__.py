"""Reading image files, archives and arrays. No torch."""
