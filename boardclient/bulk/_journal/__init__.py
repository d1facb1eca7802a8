"""The journal of a run: its file, and what a run keeps in it.

`boardclient.bulk.journal` reads it.
"""
