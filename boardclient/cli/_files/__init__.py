"""The files of imports and exports: CSV and JSON Lines. `_rows` reads, `_cards` writes."""
