"""How a call runs: credentials, limiter, send, interpret, renew once, retry.

docs/design/pipeline.md describes these stages.
"""
