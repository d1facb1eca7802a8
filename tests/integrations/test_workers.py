"""Two workers on one store of tokens, many tabs, and tokens that expire under them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from waiting import until
from web_apps import FRAMEWORKS, Browser

from boardclient import AsyncSession, FileTokenStore
from boardclient.testing import BoardService, assert_no_secrets
from boardclient.web import NoCredentials, SignIn

TABS = 40


async def test_forty_tabs_at_two_workers_while_tokens_expire(
    consenting: BoardService, tmp_path: Path, secrets: Callable[[], list[str]]
) -> None:
    """Each response is the user's own data or asks for the sign-in; each sign-in is one exchange, and serves all workers."""

    def make() -> SignIn:
        session = AsyncSession(NoCredentials(), consenting.base_url, retry=None)
        return SignIn.from_env(session, store=FileTokenStore(tmp_path / "tokens.db"))

    async with AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(FRAMEWORKS["fastapi, async client"](make)) for _ in range(2)]
        browsers = [Browser(workers[number]) for number in range(2)]

        async def tab(number: int, *, expires: bool = False) -> int:
            browser, member = browsers[number % 2], consenting.members[number % 2]
            browser.send = workers[number // 2 % 2]
            if expires and number == TABS // 2:
                consenting.rules.expire_tokens()
            reply = await browser.fetch("/me")
            if reply.status == 200:
                assert reply.json() == {"id": member.id, "account": member.id}
            else:
                assert reply.json()["login_url"] == "/login"
            return reply.status

        async def is_signed_in(number: int) -> bool:
            return await tab(number) == 200

        for round_ in range(1, 4):
            for browser, member in zip(browsers, consenting.members, strict=True):
                assert (await browser.sign_in(member.id)).json()["id"] == member.id
            for number in range(4):  # a worker looks at the store every 50 ms
                await until(partial(is_signed_in, number))
            assert set(await asyncio.gather(*(tab(number) for number in range(TABS)))) == {200}
            answers = await asyncio.gather(*(tab(number, expires=True) for number in range(TABS)))
            assert set(answers) <= {200, 401}
            assert set(await asyncio.gather(*(tab(number) for number in range(TABS)))) == {401}
            assert len(consenting.calls_of("token.exchange")) == 2 * round_
        for browser in browsers:
            assert_no_secrets([browser.seen, browser.cookies], secrets=secrets())
