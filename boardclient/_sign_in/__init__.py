"""The parts of `boardclient.web` without I/O. They read and write cookies and know the sign-ins under way."""
