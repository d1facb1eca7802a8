"""What a run has learned of its service, as a text for the ledger. No I/O.

A service may have changed since. So what is kept only helps to recognise cards. It never proves that one is absent.
"""

from __future__ import annotations

import json
from typing import Any, Final, Self

import attrs

from boardclient.bulk.reconciliation._affixes import Affixes
from boardclient.bulk.reconciliation._likeness import LEVELS, ROUNDINGS, DateRule, TextRule
from boardclient.bulk.reconciliation._shown import Shown

FACT: Final = "how cards are shown"
"""The name under which the ledger keeps it."""
_VERSION: Final = 1


@attrs.frozen(kw_only=True)
class KeptRules:
    """How a service showed cards in an earlier listing.

    The kinds of characters that were seen are not kept, so `shown` predicts no text, and all are compared in loose forms.

    Attributes:
        shown: The forms in which texts and dates agree.
        samples: The number of cards from which they were learned.
    """

    shown: Shown
    samples: int

    @classmethod
    def of(cls, shown: Shown, samples: int) -> Self:
        """Return what is kept of the rules that a listing showed."""
        name, desc = (attrs.evolve(rule, seen=frozenset(), longest=0) for rule in (shown.name, shown.desc))
        return cls(shown=attrs.evolve(shown, name=name, desc=desc), samples=samples)

    @classmethod
    def load(cls, text: str | None) -> Self | None:
        """Return the rules from a text, or None if there is none that can be read."""
        try:
            values = json.loads(text or "")
            if values["version"] != _VERSION:
                return None
            shown = Shown(
                name=_text_rule(values["name"]),
                desc=_text_rule(values["desc"]),
                due=DateRule(tuple(_number(value, ROUNDINGS) for value in values["due"])),
                has_lists=values["lists"] is True,
                is_learned=True,
            )
            return cls(shown=shown, samples=_number(values["samples"]))
        except (KeyError, TypeError, ValueError):
            return None

    def dump(self) -> str:
        """Return the rules as a text."""
        values = {
            "version": _VERSION,
            "samples": self.samples,
            "name": _text_values(self.shown.name),
            "desc": _text_values(self.shown.desc),
            "due": self.shown.due.roundings,
            "lists": self.shown.has_lists,
        }
        return json.dumps(values)


def _text_values(rule: TextRule) -> dict[str, Any]:
    affixes = None if rule.affixes is None else [rule.affixes.before, rule.affixes.after]
    return {"level": rule.level, "cut": rule.cut, "affixes": affixes}


def _text_rule(values: Any) -> TextRule:
    cut, affixes = values["cut"], values["affixes"]
    return TextRule(
        level=_number(values["level"], LEVELS),
        cut=None if cut is None else _number(cut),
        affixes=None if affixes is None else Affixes(*map(_parts, affixes)),
    )


def _parts(values: Any) -> tuple[str | None, ...]:
    if not isinstance(values, list) or not all(value is None or isinstance(value, str) for value in values):
        raise TypeError("affixes are lists of texts")
    return tuple(values)


def _number(value: Any, below: int | None = None) -> int:
    if not isinstance(value, int) or value < 0 or (below is not None and value >= below):
        raise ValueError(f"{value} is not one of the numbers that are written here")
    return value
