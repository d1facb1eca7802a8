"""The journal of a bulk run: one SQLite file that says which rows were sent and what became of them."""
