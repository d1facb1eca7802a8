"""Users who sign out while an import of theirs is under way."""

from __future__ import annotations

from pathlib import Path

import pytest

from boardclient import AsyncSession, CardDraft, ConsentRequired, MemoryTokenStore, OAuthCredentials
from boardclient.testing import BoardService


@pytest.mark.full
@pytest.mark.parametrize("is_elsewhere", [False, True])
@pytest.mark.parametrize("has_board", [False, True])
async def test_a_run_of_a_user_who_signs_out_ends(tmp_path: Path, has_board: bool, is_elsewhere: bool) -> None:
    """In the same process or in another one, whatever it is about to do. The next run resumes it once the user is back."""
    store = MemoryTokenStore()

    def credentials() -> OAuthCredentials:
        given = {"client_id": service.client_id, "client_secret": service.client_secret, "auth_url": service.auth_url}
        return OAuthCredentials(**given, redirect_uri=service.redirect_uri, key=service.key, authorize=None, store=store)

    async with BoardService(latency=0.005) as service:
        board = service.seed({"To Do": []})
        rows = [CardDraft(f"card {number}", board.lists["To Do"], reference=f"r{number}") for number in range(200)]
        signed_in, other = credentials(), credentials()
        async with AsyncSession(signed_in, base_url=service.base_url) as session:
            await signed_in.exchange_code(service.new_code(), session)
            options = {"journal": tmp_path / "j", "board_id": board.id if has_board else None, "concurrency": 1}
            async with session.cards.create_many(rows, **options) as run:
                for _ in range(5):
                    await anext(run)
                await (other if is_elsewhere else signed_in).forget()
                with pytest.raises(ConsentRequired) as caught:
                    async for _ in run:
                        pass
            assert caught.value.is_signed_out
            assert 5 <= run.report.created < 200
            await signed_in.exchange_code(service.new_code(), session)
            again = await session.cards.create_many(rows, **options)
        assert (again.created + again.already, len(service.rules.cards)) == (200, 200)
