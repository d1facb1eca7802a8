"""What the responses and the board prove about the rows of a run (4.4)."""
