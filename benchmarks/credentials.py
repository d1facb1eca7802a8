"""Measures what credentials cost without failures: `OAuthCredentials` against `StaticCredentials`, and a view per user.

Calls go through a whole session whose transport responds at once, so that nothing but the client is measured; the contenders take
turns in rounds of one process. What counts is processor time.
"""

import argparse
import asyncio
import gc
import json
import platform
import statistics
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from _arguments import count
from _instant import instant_session, oauth

from boardclient import CredentialProvider, FileTokenStore, StaticCredentials


async def _microseconds(work: Callable[[], Awaitable[object]], count: int) -> float:
    started = time.process_time()
    for _ in range(count):
        await work()
    return (time.process_time() - started) / count * 1e6


async def _calls(count: int, rounds: int) -> dict[str, list[float]]:
    """Return the cost of each round: of a whole call, and of asking the provider alone."""
    with TemporaryDirectory() as folder:
        providers: dict[str, CredentialProvider] = {
            "StaticCredentials": StaticCredentials("a-token-of-usual-length-0123456789abcdef", "key"),
            "OAuthCredentials": oauth(),
            "OAuthCredentials, file store": oauth(store=FileTokenStore(Path(folder) / "tokens" / "tokens.db")),
        }
        sessions = {name: instant_session(provider) for name, provider in providers.items()}
        samples: dict[str, list[float]] = {f"{name}{what}": [] for what in ("", ": acquire") for name in providers}
        for number in range(rounds + 1):
            for name, session in sessions.items():
                call = await _microseconds(session.members.me, count)
                provider, exchange = providers[name], session.exchange
                acquire = await _microseconds(lambda provider=provider, exchange=exchange: provider.acquire(exchange), count)  # type: ignore[misc]  # -- a lambda with defaults
                if number:  # the first round warms up
                    samples[name].append(call)
                    samples[f"{name}: acquire"].append(acquire)
        for session in sessions.values():
            await session.aclose()
    return samples


async def _views(count: int) -> tuple[float, float]:
    """Return the microseconds and bytes of a view with its own OAuth credentials."""
    async with instant_session(StaticCredentials("token")) as session:
        views = [session.with_credentials(oauth(account=str(number))) for number in range(count)]
        del views
        gc.collect()
        started = time.process_time()
        views = [session.with_credentials(oauth(account=str(number))) for number in range(count)]
        seconds = time.process_time() - started
        del views
        tracemalloc.start()
        views = [session.with_credentials(oauth(account=str(number))) for number in range(count)]
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        del views
    return seconds / count * 1e6, held / count


def main() -> None:
    """Run, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=count, default=20_000, help="calls of each contender in each round")
    parser.add_argument("--rounds", type=count, default=15)
    parser.add_argument("--views", type=count, default=10_000)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    parser.add_argument("--smoke", action="store_true", help="tiny counts: shows that it runs, measures nothing")
    options = parser.parse_args()
    if options.smoke:
        options.calls, options.rounds, options.views = 50, 1, 50
    samples = asyncio.run(_calls(options.calls, options.rounds))
    microseconds, held = asyncio.run(_views(options.views))
    print(f"Python {platform.python_version()}, {platform.system()}, median of {options.rounds} rounds, CPU us per call")
    figures = {}
    for name, found in samples.items():
        # Within a round the contenders run one after the other, so their difference is hardly affected by the machine's load.
        rival = samples["StaticCredentials" + (": acquire" if name.endswith("acquire") else "")]
        over = statistics.median(mine - its for mine, its in zip(found, rival, strict=True))
        figures[name] = {"cpu_us": statistics.median(found), "over_static_us": over}
        print(f"{name:<40}{figures[name]['cpu_us']:>9.2f}{over:>+9.2f}")
    print(f"{options.views} views with credentials of their own: {microseconds:.1f} us and {held:.0f} bytes each")
    if options.json:
        document = {"python": platform.python_version(), "calls": figures, "view": {"cpu_us": microseconds, "bytes": held}}
        options.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
