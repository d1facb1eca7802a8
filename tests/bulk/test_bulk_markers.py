"""Markers in descriptions: made once for each row, and found again on the board."""

from typing import Any

import pytest
from bulk_helpers import Memory, Moments, World

from boardclient import BadRequestError, BoardClientError, CardDraft, RateLimitError


async def test_markers_stand_in_the_description(world: World) -> None:
    """What the service gets is the description with the marker; the result shows the draft as it was given."""
    async with world.run(world.drafts(0), marker=lambda draft: f"no:{draft.reference}".replace(" ", "-")) as run:
        (result,) = [result async for result in run]
    assert result.draft == world.drafts(0)[0]
    (card,) = world.service.rules.cards.values()
    assert card.desc == "[no:row-0]\n\ntext\n\n[no:row-0]"
    assert world.reads() == 2  # what was there before, and in the end


@pytest.mark.parametrize("made", [None, "", "a b", KeyError("mine")])
async def test_an_invalid_marker_ends_the_run(world: World, made: Any) -> None:
    """What the function does wrong is raised from the iteration; nothing of the row was sent."""

    def mark(draft: CardDraft) -> str:
        if isinstance(made, Exception):
            raise made
        return made

    async with world.run(world.drafts(0, 1), marker=mark) as run:
        with pytest.raises((TypeError, ValueError, KeyError)):
            await run.wait()
    assert world.sent == []


async def test_a_marker_that_is_another_each_time_makes_no_duplicate(moments: Moments) -> None:
    """The marker that was sent is searched, not the one that the function would return now."""
    numbers = iter(range(1000))
    memory = Memory(moments)
    memory.script = {"b": ["swallowed"]}
    await memory.results("ab", marker=lambda draft: f"m{next(numbers)}")
    assert len(memory.cards) == 2


@pytest.mark.parametrize("answer", [BadRequestError("400", 400), RateLimitError("429", 429, retry_after=200.0)])
async def test_a_refusal_settles_no_doubt_of_an_earlier_attempt(moments: Moments, answer: BoardClientError) -> None:
    """A card in doubt that is sent again by the caller's choice, and then refused, is in doubt as before."""
    memory = Memory(moments)
    memory.script = {"a": ["swallowed", answer, answer]}
    (result,) = await memory.results("a", unknown="resend")
    assert (result.state, len(memory.times("a")) > 1) == ("unknown", True)
    assert len(memory.cards) == 1
    assert result.error is not None
    assert result.error.__notes__[-1] == f"sent again: {answer}"
