"""EncryptedTokenStore: what the inner store sees, rotation of keys, and rows that no key opens."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest
from virtual_loop import Clock

from boardclient import ConsentRequired, EncryptedTokenStore, FileTokenStore, MemoryTokenStore, Token, TokenStore
from boardclient.testing import BoardService, TokenStoreSuite, assert_no_secrets

SECRET = "canary-token-7"
OLD, NEW, OTHER = (EncryptedTokenStore.generate_key() for _ in range(3))


class Suite(TokenStoreSuite):
    @pytest.fixture(autouse=True)
    def _take(self, tmp_path: Path) -> None:
        self.clock, self.path = Clock(), tmp_path / "tokens"

    async def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds


class TestEncryptedMemoryTokenStore(Suite):
    async def make_store(self) -> TokenStore:
        return EncryptedTokenStore(MemoryTokenStore(clock=self.clock), NEW)


class TestEncryptedFileTokenStore(Suite):
    async def make_store(self) -> TokenStore:
        return EncryptedTokenStore(FileTokenStore(self.path, clock=self.clock), [NEW, OLD])


async def test_no_token_is_in_the_raw_bytes(tmp_path: Path) -> None:
    """Neither the file, nor the inner store's token, nor the repr holds the token."""
    inner = FileTokenStore(tmp_path / "tokens")
    store = EncryptedTokenStore(inner, NEW.encode())
    await store.publish("ann", Token(SECRET), 0)
    assert await store.read("ann") is not None
    stored = await inner.read("ann")
    assert stored is not None
    raw = (tmp_path / "tokens").read_bytes()
    assert SECRET.encode() not in raw
    assert_no_secrets([stored.token.value, repr(store)], secrets=[SECRET, NEW])


async def test_keys_are_rotated(caplog: pytest.LogCaptureFixture) -> None:
    """What an older key encrypted is read with it; what is new is encrypted with the first one."""
    inner = MemoryTokenStore()
    await EncryptedTokenStore(inner, OLD).publish("ann", Token(SECRET), 0)
    rotated = EncryptedTokenStore(inner, [NEW, OLD])
    stored = await rotated.read("ann")
    assert stored is not None
    assert stored.token == Token(SECRET)
    await rotated.publish("ann", Token("second"), stored.generation)
    assert await EncryptedTokenStore(inner, NEW).read("ann") == await rotated.read("ann")
    assert caplog.records == []
    assert await EncryptedTokenStore(inner, OLD).read("ann") is None


async def test_a_row_that_no_key_opens_needs_consent(service: BoardService, caplog: pytest.LogCaptureFixture) -> None:
    """A row that no key decrypts, or that is damaged or another account's, counts as no token until a sign-in replaces it."""
    inner = MemoryTokenStore()
    await EncryptedTokenStore(inner, OTHER).publish("ann", Token(SECRET), 0)
    await inner.publish("bob", Token("gAAAA-not-ours"), 0)
    store = EncryptedTokenStore(inner, NEW)
    await store.publish("eve", Token(SECRET), 0)
    moved = await inner.read("eve")
    assert moved is not None
    await inner.publish("dan", moved.token, 0)
    ann = service.oauth_credentials(authorize=None, store=store, account="ann")
    async with service.session(ann) as session:
        with caplog.at_level(logging.WARNING, "boardclient"), pytest.raises(ConsentRequired):
            await session.members.me()
        assert "no key opens the stored token of account 'ann'" in caplog.text
        assert [await store.read(name) for name in ("bob", "dan")] == [None, None]
        await ann.exchange_code(service.new_code(), session)
        await session.members.me()
    assert await store.read("ann") is not None
    assert_no_secrets(caplog.records, secrets=[SECRET, NEW, OTHER])


@pytest.mark.parametrize("keys", [[], "", "short", [NEW, "x"], [NEW, 3], [b"\xff" * 44]])
def test_an_invalid_key_is_refused(keys: list[str]) -> None:
    """What is no Fernet key is refused without being shown."""
    with pytest.raises(ValueError, match=r"^keys must be Fernet keys"):
        EncryptedTokenStore(MemoryTokenStore(), keys)


def test_without_cryptography(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra the error says what to install."""
    monkeypatch.setitem(sys.modules, "cryptography.fernet", None)
    for step in (lambda: EncryptedTokenStore(MemoryTokenStore(), NEW), EncryptedTokenStore.generate_key):
        with pytest.raises(ModuleNotFoundError, match=r"pip install 'boardclient\[crypto\]'"):
            step()
