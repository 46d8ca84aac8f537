"""What commands print: progress bars, tables and summaries."""
