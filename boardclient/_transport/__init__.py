"""Sends one request and reads its whole response. Of what a session uses, only this package imports aiohttp.

It does not know of calls, credentials or retries. What it takes and returns are plain values that need no aiohttp, in `_values`.
`TransportChoice` has two transports: `ClientSessionTransport`, which calls `ClientSession.request` and always works, and
`DirectTransport`, which costs less than half. Both use the connections of `_connection_pool`, and `_reader` reads the responses.
"""
