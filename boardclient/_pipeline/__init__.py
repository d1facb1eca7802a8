"""How a call runs. The stages are credentials, limiter, send, interpret, renew and retry."""
