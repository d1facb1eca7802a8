"""HTTP clients that are not written in Python, used as their users would: no retries, no deadline, no models.

Each imports its package when it is opened, since this package does not require them.
"""

import contextlib
import time
from collections.abc import AsyncIterator, Callable
from io import BytesIO
from typing import Any

from _contenders import CREDENTIALS, Request, Service, Work, draft, in_workers, read_path


@contextlib.asynccontextmanager
async def _pyreqwest(service: Service, concurrency: int) -> AsyncIterator[Any]:
    from pyreqwest.client import ClientBuilder

    async with ClientBuilder().base_url(service.base_url).max_connections(concurrency).error_for_status(True).build() as http:
        yield http


@contextlib.asynccontextmanager
async def create_with_pyreqwest(service: Service, concurrency: int) -> AsyncIterator[Work]:
    """Create cards with reqwest, which is written in Rust."""
    async with _pyreqwest(service, concurrency) as http:

        async def one(position: int) -> object:
            response = await http.post("/1/cards").body_json(draft(position)).build().send()
            return await response.json()

        yield in_workers(concurrency, one)


@contextlib.asynccontextmanager
async def get_with_pyreqwest(service: Service, concurrency: int) -> AsyncIterator[Work]:
    """Read cards with reqwest."""
    async with _pyreqwest(service, concurrency) as http:

        async def one(_: int) -> object:
            response = await http.get(read_path(0)).query(CREDENTIALS).build().send()
            return await response.json()

        yield in_workers(concurrency, one)


@contextlib.asynccontextmanager
async def create_with_wreq(service: Service, concurrency: int) -> AsyncIterator[Work]:
    """Create cards with wreq, which is written in Rust."""
    import wreq

    http = wreq.Client()

    async def one(position: int) -> object:
        response = await http.post(f"{service.base_url}/1/cards", json=draft(position))
        response.raise_for_status()
        return await response.json()

    yield in_workers(concurrency, one)


@contextlib.asynccontextmanager
async def get_with_wreq(service: Service, concurrency: int) -> AsyncIterator[Work]:
    """Read cards with wreq."""
    import wreq

    http = wreq.Client()

    async def one(_: int) -> object:
        response = await http.get(service.base_url + read_path(0), query=CREDENTIALS)
        response.raise_for_status()
        return await response.json()

    yield in_workers(concurrency, one)


def _curl_work(service: Service, concurrency: int, request_of: Callable[[int], Request]) -> Work:
    """Run curl's own loop, in which a program does nothing else meanwhile: no event loop calls it."""
    import msgspec
    import pycurl

    decode = msgspec.json.Decoder().decode
    multi, idle = pycurl.CurlMulti(), [pycurl.Curl() for _ in range(concurrency)]
    if service.certificate:
        for curl in idle:
            curl.setopt(pycurl.CAINFO, service.certificate)

    async def work(calls: int, seconds: list[float]) -> int:
        begun, done, under_way = 0, 0, {}
        while done < calls:
            while idle and begun < calls:
                curl, (url, body), received = idle.pop(), request_of(begun), BytesIO()
                curl.setopt(pycurl.URL, url)
                if body is not None:
                    curl.setopt(pycurl.POSTFIELDS, body)
                    curl.setopt(pycurl.HTTPHEADER, ["Content-Type: application/json"])
                curl.setopt(pycurl.WRITEDATA, received)
                multi.add_handle(curl)
                under_way[curl] = received, time.perf_counter()
                begun += 1
            multi.perform()
            _, ended, failed = multi.info_read()
            for curl in ended:
                received, started = under_way.pop(curl)
                multi.remove_handle(curl)
                if curl.getinfo(pycurl.RESPONSE_CODE) != 200:
                    raise RuntimeError(curl.getinfo(pycurl.RESPONSE_CODE))
                decode(received.getvalue())
                seconds.append(time.perf_counter() - started)
                idle.append(curl)
                done += 1
            if failed:
                raise RuntimeError(failed)
            if not ended:
                multi.select(1.0)
        return done

    return work


@contextlib.asynccontextmanager
async def create_with_pycurl(service: Service, concurrency: int) -> AsyncIterator[Work]:
    """Create cards with libcurl, which is written in C."""
    import msgspec

    url, encode = f"{service.base_url}/1/cards", msgspec.json.Encoder().encode
    yield _curl_work(service, concurrency, lambda position: (url, encode(draft(position))))


@contextlib.asynccontextmanager
async def get_with_pycurl(service: Service, concurrency: int) -> AsyncIterator[Work]:
    """Read cards with libcurl."""
    url = f"{service.base_url}{read_path(0)}?key=k&token=t"
    yield _curl_work(service, concurrency, lambda _: (url, None))
