"""The parts of `boardclient.web` without I/O: what browsers send and keep, and the sign-ins under way."""
