"""Decides for all rows in doubt together whether their cards exist (4.4).

A card is a row's if it shows the row's marker, or if it alone equals the row and no other. A row is absent if two listings show
no card that may be its, and the second is longer, and shows a card that was sent to the same list after the row: a listing may be
cut off. All else stays unknown. docs/design/proof.md has the rules.
"""

from __future__ import annotations

import asyncio
import copy
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Final, NamedTuple

from boardclient._interface._responses import add_words, ends_run
from boardclient.bulk._content import EqualCards, digest, normal
from boardclient.bulk._ledger import Doubt, Ledger, UnrecordedError
from boardclient.bulk._life import Event, Extent, Row
from boardclient.bulk._proof._board import NO_BOARD, Listing, Missing, RunBoard
from boardclient.bulk._proof._probes import Probes
from boardclient.bulk._proof._recognition import (
    Appearances,
    Evidence,
    Marking,
    Matches,
    RowMarkers,
    Samples,
    Sought,
    Suspects,
    find_equal,
)
from boardclient.bulk._results import BulkAudit
from boardclient.errors import BoardClientError, Effect
from boardclient.models import Card, CardDraft

_MOST_NAMED: Final = 100
"""How many cards are kept for a row that may be its."""
_MOST_AUDITED: Final = 1000
"""The largest number of cards in each tuple of an audit."""
NOT_KNOWN: Final = "whether the card exists is not known"
_DOUBT: Final = re.compile(
    r"; the (?:service may have done it|status says that it was done)(?:: check before you send it again.*)?"
)
"""What an error says of its effect, with the advice that those of earlier versions have in a journal."""
_NO_BASELINE: Final = (
    "the journal does not have the cards that existed before its first row: look for the card on the board, and give the next"
    " import a new journal and marker=True"
)


class RowFinding(NamedTuple):
    """What a listing says about a row, as an event of its life.

    Each row may be "found" or "undecided". One in doubt may be "absent" or "not listed": then only a later listing can prove that
    the card does not exist. A refused one is "absent" if no card may be its and it is sent again, otherwise the "refusal stands".
    """

    row: Row
    event: Event
    card: Card | None = None
    error: BoardClientError | None = None


class _Possible(NamedTuple):
    """Cards that may be an open row's, why, and the size of the listing that showed them."""

    cards: Sequence[Card]
    why: str
    extent: Extent


class Reconciler:
    """Recognises the cards of a run on its board. Owned by the run."""

    def __init__(self, board: RunBoard, ledger: Ledger, marking: Marking, *, sends_probes: bool) -> None:
        self._ledger = ledger
        self._board = board
        self.markers: Final = RowMarkers(marking, ledger.secret)
        self.appearances: Final = Appearances()
        self.probes: Final = Probes(board, ledger)
        self._sends_probes = sends_probes
        self.has_grown = False
        """Whether a card was created since the board was read, or may have been: the next listing may be longer."""
        self._samples = Samples()
        self._recovered = 0
        """How many rows in doubt were found."""
        self._replaced = 0
        """How many of these have the identifier of another row's card, which is gone."""
        self._unknown: list[Row] = []
        """The rows whose cards may exist or not."""
        self._possible: dict[int, _Possible] = {}
        """The cards that may be those of open rows until a probe decides whose they are, by the numbers of the rows."""
        self._named: set[str] = set()
        """The identifiers of the cards that their errors name."""
        self._known_whole: set[str] = set()
        """The lists whose cards before the first row are all known, since a later listing was longer than the first."""
        self._others: Sequence[Doubt] = ()
        """The rows in doubt that are not this run's."""
        self._read_at: list[float] = []
        """When the board was read, on the loop's clock."""
        self.unaccounted: dict[str, int] = {}
        """The cards that are not known to be a row's, and the number, from 1, of the reading that first listed each as it is."""

    def record_created(self, row: Row, card_id: str) -> None:
        """Record that the card of a row was created just now."""
        self._board.created_at = asyncio.get_running_loop().time()
        self.has_grown = True
        if not row.is_probe:
            self.record_card(row, card_id)

    def record_probe(self, probe: Row, card: Card | None) -> None:
        """Record that a probe was sent. `card` is None if its response did not come."""
        self.has_grown = True
        self.probes.record_sent(probe, card)

    def record_card(self, row: Row, card_id: str) -> None:
        """Record the card of a row, which an earlier run may have created."""
        if self.markers.are_secret:
            self.markers.of(row)
        self._samples.add(card_id, row)
        self.appearances.record_row(card_id, row.draft)

    # --- rows in doubt

    async def reconcile(self, rows: Sequence[Row], refused: Sequence[Row]) -> list[RowFinding]:
        """Read the board, and return a finding for each row. The cards of `refused` rows are no other row's.

        No other row may be in flight, since a card that is being created could be taken for that of a row in doubt.

        Raises:
            BoardClientError: an error that ends the run. If the board can't be read for another reason, the findings say so.
        """
        self.has_grown = False
        try:
            listing, missing = await self._read(rows, refused)
        except BoardClientError as error:
            # Each of them would be met again by each row, so the run ends and says so once.
            if ends_run(error) or isinstance(error, (*NO_BOARD, UnrecordedError)):
                raise
            return await self.give_up(rows, f"the board could not be read: {error.message}", error)
        return await self._judge(rows, refused, listing, missing)

    async def check(self, refused: Sequence[Row], doubted: Sequence[Row]) -> list[RowFinding]:
        """Read the board, and return a finding for each refused row: a service may have done what it refused.

        Raises:
            BoardClientError: the board could not be read.
        """
        listing, missing = await self._read(doubted, refused)
        return await self._judge_refused(refused, doubted, listing, missing)

    async def _read(self, rows: Sequence[Row], refused: Sequence[Row]) -> tuple[Listing, Missing]:
        listing = await self._read_listing(rows, refused)
        await self._board.read_lists()  # after the cards, so that they were listed if it is open
        return listing, await self._board.look_for_missing(listing, self._samples.ids)

    async def _read_listing(self, rows: Sequence[Row], refused: Sequence[Row]) -> Listing:
        """Read the cards, and note in which reading each was listed first.

        A card with a known identifier may by now be that of one of `rows`, which are in doubt, or of an unknown row. It can be
        that of a refused one only if it shows its secret marker.
        """
        marked = refused if self.markers.are_secret else ()
        recycling, probes = self._recycling([*rows, *self._unknown, *marked]), self.probes.there
        listing = await self._board.read_listing({*self._samples.ids, *probes}, recycling, probes)
        await self.probes.recognise(listing)
        if listing.unaccounted:
            self._others, cards = await self._ledger.others()
            self.markers.know(self._others)
            # Other workers and earlier runs may have confirmed them while this board was read.
            listing.unaccounted = [card for card in listing.unaccounted if card.id not in cards]
            unmade = self.markers.unmade(listing.unaccounted)
            if unmade and (unknown := await self._ledger.unrecorded(unmade)):
                raise UnrecordedError(sorted({unmade[marker] for marker in unknown}))
        # After the reading: a row whose request ended before it is compared with what it showed.
        self._read_at.append(asyncio.get_running_loop().time())
        for card in listing.unaccounted:
            # A deleted card's identifier may come again with another content: it is new from this reading on.
            if card.id not in self.unaccounted or not self.appearances.has(card.id, card):
                self.appearances.record(card.id, card)
                self.unaccounted[card.id] = len(self._read_at)
        return listing

    def _recycling(self, rows: Sequence[Row]) -> Callable[[Card], bool] | None:
        """Return a test for cards with known identifiers that may be these rows' by now.

        A response to a row named such a card, or it shows the row's secret marker, or it shows the row's name or other marker,
        and did not before. It may also be a probe's, of an earlier run too.
        """
        if not rows:
            return None if self._ledger.is_new and not self.probes.unseen else self.probes.is_one
        named, names = {row.named for row in rows}, {normal(row.draft.name) for row in rows}
        wanted = self.markers.of_all(rows)

        def is_recycled(card: Card) -> bool:
            is_marked = bool(wanted) and not wanted.isdisjoint(self.markers.shown(card))
            if card.id in named or (is_marked and self.markers.are_secret) or self.probes.is_one(card):
                return True
            return (is_marked or normal(card.name or "") in names) and not self.appearances.has(card.id, card)

        return is_recycled

    def _readings_before(self, row: Row) -> int:
        """Return how often the board had been read before a row was last sent: none is in flight while it is read."""
        return bisect_left(self._read_at, row.doubted_at)

    def _sought(self, row: Row) -> Sought:
        return Sought(row, self.markers.content(row), digest(row.draft), self._readings_before(row))

    async def _judge(self, rows: Sequence[Row], refused: Sequence[Row], listing: Listing, missing: Missing) -> list[RowFinding]:
        """Return a finding for each row, knowing that unknown rows and those of earlier runs may have some of the cards."""
        cards, incomplete = listing.unaccounted, _incompleteness(listing, missing)
        matches, evidence = await self._recognise([*rows, *self._unknown], refused, listing, missing)
        owned = matches.card_ids
        if evidence.is_marked:  # otherwise responses may have named the cards of other rows
            owned |= self.markers.cards_of_rows(cards)
        owned |= self.probes.copies(cards, {normal(row.draft.name) for row in rows})
        suspects = Suspects([card for card in cards if card.id not in owned], self.unaccounted, evidence)
        findings: list[RowFinding] = []
        resembling: dict[int, Sequence[Card]] = {}
        before, self._possible = self._possible, {}
        # Five cases. A card is the row's. None may be: the row is absent, or that is not proven yet. Some may be: older cards are
        # not known, so they may be others'; a probe may show whose they are; or nothing can.
        for row in rows:
            equal = matches.unclear.get(row, ())
            possible = equal or suspects.of(self.markers.content(row), self._readings_before(row), row.draft.desc)
            if row in matches.found:
                findings.append(RowFinding(row, "found", matches.found[row]))
            elif not possible:
                if row.absent_from is None and row.seq in before:
                    row.absent_from = _absent_before(before[row.seq], listing)
                findings.append(
                    self._finding_of_unlisted(row, listing, evidence) if incomplete is None else _unknown(row, incomplete)
                )
            elif not listing.has_baseline:
                findings.append(_unknown(row, _NO_BASELINE, cards=possible))
            elif incomplete is None and self._may_become_clear(row.draft.list_id, evidence, is_equal=bool(equal)):
                why = _why(possible, is_equal=bool(equal))
                self._possible[row.seq] = _Possible(possible, why, listing.extent(row.draft.list_id))
                findings.append(RowFinding(row, "not listed"))
            else:
                resembling[row.seq] = possible
                findings.append(_unknown(row, _why(possible, is_equal=bool(equal)), cards=possible))
        return await self._record(findings, resembling, listing)

    def _may_become_clear(self, list_id: str, evidence: Evidence, *, is_equal: bool) -> bool:
        """Return True if the probe of a list may decide whose the cards are that may be a row's.

        It makes the listing longer than the one before the run, or shows whether the list shows markers, or cards their lists.
        """
        awaits_sample = evidence.awaits_lists or evidence.lacks_markers(list_id)
        return self._sends_probes and (list_id not in self._known_whole if is_equal else awaits_sample)

    async def _judge_refused(
        self, refused: Sequence[Row], doubted: Sequence[Row], listing: Listing, missing: Missing
    ) -> list[RowFinding]:
        """Return a finding for each refused row. Its card exists, or may, only if one shows its marker or equals it."""
        if not refused:
            return []
        matches, _ = await self._recognise([*doubted, *self._unknown], refused, listing, missing)
        findings: list[RowFinding] = []
        resembling: dict[int, Sequence[Card]] = {}
        for row in refused:
            if row in matches.found:
                findings.append(RowFinding(row, "found", matches.found[row]))
            elif possible := matches.unclear.get(row):
                resembling[row.seq] = possible
                findings.append(_unknown(row, _why(possible, is_equal=True), cards=possible))
            else:
                # A refusal during an outage was not the row's fault, so it is sent again; any other is its result.
                findings.append(RowFinding(row, "absent" if row.is_excused else "refusal stands"))
        return await self._record(findings, resembling, listing)

    async def _record(
        self, findings: list[RowFinding], resembling: Mapping[int, Sequence[Card]], listing: Listing
    ) -> list[RowFinding]:
        """Note and return what a listing says about rows, and the cards that may be theirs, by the numbers of the rows."""
        for row, event, card, _ in findings:
            if card is not None:
                self._recovered += 1
                self._replaced += listing.is_confirmed(card.id)
                self.record_card(row, card.id)
            elif event == "undecided":
                self._unknown.append(row)
        await self._name_cards(resembling)
        return findings

    async def _name_cards(self, resembling: Mapping[int, Sequence[Card]]) -> None:
        """Note which cards the errors of unknown rows name, by the numbers of the rows."""
        for some in {id(some): some for some in resembling.values()}.values():  # most rows have the same
            self._named.update(card.id for card in some)
        if resembling:
            await self._ledger.record_resembling({seq: some[:_MOST_NAMED] for seq, some in resembling.items()})

    async def _recognise(
        self, doubted: Sequence[Row], refused: Sequence[Row], listing: Listing, missing: Missing
    ) -> tuple[Matches, Evidence]:
        """Return which cards are those of rows in doubt and of refused ones, and what the samples show.

        A card whose identifier is known is a row's if it shows its secret marker. If it shows another marker of the row, equals
        the row, or was named by its response, that is not clear.
        """
        rows = [*doubted, *refused]
        evidence = Evidence(self._samples, listing, self.markers, self.probes.there.items())
        trusted = listing.recycled if self.markers.are_secret else ()
        marked = self.markers.match(rows, [*listing.unaccounted, *trusted])
        sought = {row: self._sought(row) for row in rows if row not in marked}
        others = [Sought(doubt, doubt.content, b"%d" % doubt.seq, 0) for doubt in self._others]
        free = EqualCards(marked.without(listing.unaccounted) if listing.has_baseline else [], evidence.fields)
        equal = find_equal([*sought.values(), *others], free, self.unaccounted)
        possible = self._possible_cards(rows, sought, {*doubted}, listing, evidence)
        self._disbelieve(equal, possible, listing, missing, evidence)
        return marked | equal, evidence

    def _disbelieve(
        self, equal: Matches, possible: Mapping[Row, list[Card]], listing: Listing, missing: Missing, evidence: Evidence
    ) -> None:
        """Make it unclear whose a card is that equals a row, where something speaks against it.

        `possible` has the rows without marked cards, with the cards with known identifiers that may be theirs.
        """
        copies = listing.copies()
        by_id = {card.id: card for card in chain(listing.unaccounted, listing.recycled)}
        # While known cards are missing, a card may be one of them, listed with another identifier.
        others_own = self.appearances.sent_like(equal.found.values()) if listing.missing else set[str]()
        for row, cards in possible.items():
            # Whatever speaks against it makes the card only unclear: it may still be the row's.
            card = equal.found.get(row)
            if card is not None and (
                cards
                or not self._is_equality_believed(row.draft.list_id, listing, missing, evidence)
                or card.id in others_own
                or _is_copy(card, row.draft, copies)
            ):
                cards.append(equal.found.pop(row))
            if row not in equal.found and (named := by_id.get(row.named or "")) is not None:
                cards.append(named)
            if cards:
                some = chain(equal.unclear.get(row, ()), cards)
                equal.unclear[row] = list({card.id: card for card in some}.values())

    def _is_equality_believed(self, list_id: str, listing: Listing, missing: Missing, evidence: Evidence) -> bool:
        """Return True if a card of a list is a row's that it equals, as far as the list is concerned."""
        return not missing.is_incomplete and self._is_whole(list_id, listing) and evidence.shows_as_sent(list_id)

    def _is_whole(self, list_id: str, listing: Listing) -> bool:
        """Return True if the cards of a list from before the run are all known: a longer listing shows that none was cut off.

        Otherwise a card that is new on the list may be an old one.
        """
        if list_id not in self._known_whole and listing.has_grown(self._board.extent_before(list_id)):
            self._known_whole.add(list_id)
        return list_id in self._known_whole

    def _possible_cards(
        self, rows: Sequence[Row], sought: Mapping[Row, Sought], doubted: set[Row], listing: Listing, evidence: Evidence
    ) -> dict[Row, list[Card]]:
        """Return the cards with known identifiers that may be a row's by now, for each row: none for a refused one."""
        marked = self.markers.match(rows, () if self.markers.are_secret else listing.recycled)
        equal = EqualCards(listing.recycled, evidence.fields)
        return {
            row: [
                # The card of a row that is the same is that row's.
                *(card for card in equal.to(one.content) if not self.appearances.has(card.id, row.draft)),
                *marked.unclear.get(row, [marked.found[row]] if row in marked.found else []),
            ]
            if row in doubted
            else []
            for row, one in sought.items()
        }

    def _finding_of_unlisted(self, row: Row, listing: Listing, evidence: Evidence) -> RowFinding:
        """Return a finding for a row that is not listed, which is absent if an earlier, shorter listing lacked it too.

        The later one shows a card that was sent to the list after the row.
        """
        list_id, open_lists = row.draft.list_id, self._board.open_lists
        # The service has named a card for it, so it has done something: absence would be untrue.
        if row.named is not None:
            why = f"its response named a card which is known as another: {row.named}"
            return _unknown(row, why, cards=[Card(row.named)])
        if open_lists is not None and list_id not in open_lists:
            return _unknown(row, f"the list {list_id} was archived or removed, so its cards may not be listed")
        if row.absent_from is not None and listing.has_grown(row.absent_from) and evidence.has_later_sample(row):
            row.absent_from = None
            return RowFinding(row, "absent")
        extent = listing.extent(list_id)
        # The smallest listing that lacked it: a later one has to be longer than this to show that nothing was cut off.
        row.absent_from = extent if row.absent_from is None else min(row.absent_from, extent)
        return RowFinding(row, "not listed")

    async def give_up(self, rows: Sequence[Row], why: str, cause: BoardClientError | None = None) -> list[RowFinding]:
        """Return findings for rows about which nothing can be proven, and why: in words, and as an error if there is one."""
        self._unknown += rows
        possible = {row.seq: self._possible[row.seq] for row in rows if row.seq in self._possible}
        await self._name_cards({seq: one.cards for seq, one in possible.items()})
        nothing = _Possible((), why, Extent(0, 0))
        return [_unknown(row, one.why, cause, one.cards) for row in rows for one in [possible.get(row.seq, nothing)]]

    # --- the audit

    async def audit(self, refused: Sequence[Row], doubted: Sequence[Row]) -> tuple[BulkAudit, list[RowFinding]]:
        """Read the board again, compare it with the ledger, and return a finding for each refused row, as `check` does.

        Raises:
            BoardClientError: the board could not be read.
        """
        listing = await self._read_listing(doubted, refused)
        missing = await self._board.look_for_missing(listing, self._samples.ids)
        findings = await self._judge_refused(refused, doubted, listing, missing)
        found = {finding.card.id for finding in findings if finding.card is not None}
        others = self._others_among(listing, found)
        second = self._second_cards(others, listing)
        # Cards of rows that the caller has taken out of the file since are not missed.
        lost = sorted(filter(self._ledger.is_in_input, missing.deleted))
        second -= self._named  # one may be the only card of an unknown row
        duplicated = [card for card in others if card.id in second]
        unexpected = [card for card in others if card.id not in second and (listing.has_baseline or card.id in self._named)]
        resembling = [card for card in chain(unexpected, duplicated) if card.id in self._named]
        audit = BulkAudit(
            confirmed=listing.confirmed + sum(not listing.is_confirmed(card_id) for card_id in found),
            recovered=self._recovered,
            lost=len(lost),
            hidden=missing.hidden,
            reused=max(listing.reused, self._replaced)
            + sum(listing.is_confirmed(row.named or "") for row in self._unknown)
            + sum(map(listing.is_confirmed, self.probes.there)),
            duplicated=tuple(duplicated[:_MOST_AUDITED]),
            unexpected=tuple(unexpected[:_MOST_AUDITED]),
            lost_cards=tuple(map(Card, lost)),
            resembling=tuple(resembling[:_MOST_AUDITED]),
            unproven=tuple(row.draft for row in self._unknown[:_MOST_AUDITED]),
        )
        return audit, findings

    def _others_among(self, listing: Listing, found: set[str]) -> list[Card]:
        """Return the listed cards that are no row's, as far as is known. `found` are those of refused rows."""
        owned = found | self._others_own(listing)
        recycled = (card for card in listing.recycled if card.id in self._named)
        return [card for card in chain(listing.unaccounted, recycled) if card.id not in owned]

    def _second_cards(self, others: Sequence[Card], listing: Listing) -> set[str]:
        """Return the identifiers of those of the other cards that are second cards of rows, and can't be an unknown row's."""
        evidence = Evidence(self._samples, listing, self.markers)
        # Without a baseline, it is not known which cards existed before, unless they show a marker.
        equal = EqualCards(others if listing.has_baseline else [], evidence.fields)

        def equal_to(rows: Iterable[Row]) -> set[str]:
            return {card.id for row in rows for card in equal.to(self.markers.content(row))}

        # If many confirmed cards look like a card, looks say nothing, unless cards are shown as they were sent.
        copies = listing.copies() if listing.has_baseline else {}
        copied = {
            card.id
            for card in others
            if card.id not in self._named
            and (copies.get(card.id) == 1 or (card.id in copies and evidence.shows_as_sent(card.list_id)))
        }
        if listing.has_baseline and not self.markers.are_used:
            copied |= self.appearances.sent_like(others) - self._named
        second = self.markers.cards_of_rows(others) | equal_to(row for _, row in self._samples) | copied
        return second - equal_to(self._unknown) - self.markers.cards_of(self._unknown, others)

    def _others_own(self, listing: Listing) -> set[str]:
        """Return the identifiers of the cards that may be those of rows in doubt which are not this run's."""
        equal = EqualCards(listing.unaccounted, Evidence(self._samples, listing, self.markers).fields)
        marked = self.markers.cards_of_doubts(self._others, listing.unaccounted)
        return marked | {card.id for doubt in self._others for card in equal.to(doubt.content)}


def _is_copy(card: Card, draft: CardDraft, copies: Mapping[str, int]) -> bool:
    """Return True if a card equals a row only in what was sent, but another row's card in everything."""
    return card.id in copies and bool((card.desc and draft.desc is None) or (card.due and draft.due is None))


def _incompleteness(listing: Listing, missing: Missing) -> str | None:
    """Return why a listing may be cut off, so that it proves no absence, or None."""
    if not missing.is_incomplete:
        return None
    total = listing.confirmed + len(missing.deleted) + missing.hidden
    return f"the listing lacks {missing.hidden} of {total} cards that were confirmed: it is not complete"


def _absent_before(earlier: _Possible, listing: Listing) -> Extent | None:
    """Return the size of an earlier listing if it lacked a row's card: those that might have been it are known to be others'."""
    return earlier.extent if all(listing.shows(card.id) for card in earlier.cards) else None


def _why(cards: Sequence[Card], *, is_equal: bool) -> str:
    """Return why the first of these cards may be a row's."""
    more = f" and {len(cards) - 5:,} more" if len(cards) > 5 else ""
    some = f"the card{'s' if len(cards) > 1 else ''} {', '.join(card.id for card in cards[:5])}{more}"
    if is_equal:
        return f"{some} may be this row's, another row's or other people's: nothing tells them apart"
    return f"{some} may be this row's: {'it is' if len(cards) == 1 else 'they are'} no other row's"


def _unknown(row: Row, why: str, cause: BoardClientError | None = None, cards: Sequence[Card] = ()) -> RowFinding:
    return RowFinding(row, "undecided", error=unknown_error(row, why, cause, cards))


def cause_in(message: str) -> str:
    """Return what the message of an error says of a request: the status, or what broke.

    What follows it says more about the effect. Of what an earlier run has said, the cause counts.
    """
    cause = _DOUBT.sub("", message.partition(f"; {NOT_KNOWN}")[0])
    return "" if cause.startswith(NOT_KNOWN) else cause


def unknown_error(row: Row, why: str, cause: BoardClientError | None = None, cards: Sequence[Card] = ()) -> BoardClientError:
    """Return the row's own error, what broke or what the status was, with why it stays unknown, and which cards may be its."""
    error = copy.copy(row.error or BoardClientError("", Effect.UNKNOWN))
    if error.effect is Effect.REJECTED:  # as the response said, and the board shows that it may be otherwise
        error.effect = Effect.UNKNOWN
    error.message = cause_in(error.message)
    add_words(error, f"{NOT_KNOWN}: {why}", "; " if error.message else "")
    error.candidates = tuple(card.id for card in cards[:_MOST_NAMED])
    if cause is not None:
        error.retry_at = cause.retry_at
    return error
