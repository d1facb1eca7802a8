"""How the file of an import is read: its encoding, its layout, its rows."""
