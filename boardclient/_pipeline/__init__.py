"""How a call runs: credentials, limiter, send, interpret, renew once, retry, under one deadline."""
