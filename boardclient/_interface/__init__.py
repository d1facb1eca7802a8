"""Fields, operations and statuses of the service, without I/O."""
