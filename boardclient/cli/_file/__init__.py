"""The files of rows: an import reads one, and an export writes one."""
