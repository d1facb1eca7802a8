"""How the rows of a run are sent, and when the board is read."""
