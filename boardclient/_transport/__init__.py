"""Sends one request and reads its whole response. Only here and in `testing` is aiohttp imported.

This package does not know of calls, credentials or retries. What it takes and returns are plain values that need no aiohttp, in
`_values`; `Pool` in `_pool` does the I/O. A pool has two transports: `ClientSessionTransport` over `ClientSession.request`, which
always works, and `DirectTransport` over the same connections, which costs less than half.
"""
