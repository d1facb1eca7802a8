"""The commands, each in the module of its subject."""
