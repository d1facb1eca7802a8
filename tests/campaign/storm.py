"""How the service of a campaign fails: a fault that decides for each POST of a card what becomes of it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from boardclient.testing import BoardService, Faults, faults


@attrs.define(kw_only=True, eq=False)
class Storm:
    """What happens to POSTs of cards, as a fault of the service: by chance (`rates`) or by number (`script`).

    `delay` is the longest time between a request and its late commit, `expiries` are the numbers of the calls at which every
    token expires. `unanswered` are the cards whose answer the client can't have got.
    """

    service: BoardService
    random: random.Random
    rates: Mapping[str, float]
    script: Callable[[int], str | None] | None = None
    delay: float
    expiries: frozenset[int] = frozenset()
    foreign: Callable[[Any], None] | None = None
    bucket: Faults | None = None
    posts: int = 0
    pending: int = 0
    latest: float = 0.0
    unanswered: set[str] = attrs.field(factory=set)

    def choose(self) -> str | None:
        """Say what happens to the next call."""
        if self.bucket is not None and self.bucket.meet("cards.create", self.posts) is not None:
            return self.random.choice(["refused", "refused-until"])
        if self.script is not None:
            return self.script(self.posts)
        chance = self.random.random()
        for what, rate in self.rates.items():
            chance -= rate
            if chance < 0:
                return what
        return None

    async def play(self, stage: Any) -> None:
        """Answer, or do not."""
        self.posts += 1
        if self.posts in self.expiries:
            self.service.rules.expire_tokens()
        what = self.choose()
        seconds = self.delay * self.random.random()
        match what:
            case None:
                await stage.reply_answer()
            case "refused":
                await stage.reply(429)
            case "refused-until":
                await stage.reply(429, b"", {"Retry-After": "0.05"})
            case "dropped-before":
                stage.abort(reset=self.random.random() < 0.5)
            case "dropped-after":
                self.commit(stage)
                stage.abort(reset=self.random.random() < 0.5)
            case "bad-gateway":
                self.commit(stage)
                await stage.reply(502, b"bad gateway")
            case "truncated":
                self.commit(stage)
                await faults.truncated().play(stage)
            case "late":
                await self.commit_late(stage, seconds)
                await stage.reply_answer()
            case "late-dropped":
                stage.abort()
                await self.commit_late(stage, seconds)
            case "hanging":
                self.commit(stage)
                await stage.hang()
            case "foreign":
                self.foreign(stage)  # type: ignore[misc]  # -- only kinds with a foreigner have it
                stage.abort()
            case _:
                raise ValueError(what)

    def commit(self, stage: Any) -> None:
        """Do what the request asks for; its response is not to arrive."""
        answer = stage.commit()
        if answer.status == 200:
            self.unanswered.add(answer.body["id"])

    async def commit_late(self, stage: Any, seconds: float) -> None:
        """Do it after a time, of which the longest is kept; the token is looked at when the request arrives."""
        begun, rules = time.monotonic(), self.service.rules
        tokens = dict(rules.tokens)
        body = self.service.calls[-1].body  # this call's: nothing was awaited since it was noted
        token = tokens.get(body.get("token")) if isinstance(body, dict) else None
        if token is None or token.expires_at is not None:
            seconds = 0.0  # it is refused, which happens at once
        self.pending += 1
        try:
            await stage.sleep(seconds)
            tokens, rules.tokens = rules.tokens, tokens
            self.commit(stage)
            rules.tokens = tokens
        finally:
            self.pending -= 1
        self.latest = max(self.latest, time.monotonic() - begun)
