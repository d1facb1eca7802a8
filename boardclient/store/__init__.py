"""Where tokens, paces and what became of rows are kept for several processes."""
