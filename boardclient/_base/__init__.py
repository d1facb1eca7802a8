"""What all parts stand on: no calls, no rows, no accounts."""
