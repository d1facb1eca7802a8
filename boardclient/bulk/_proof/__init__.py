"""What the board proves about the rows of a run (4.4)."""
