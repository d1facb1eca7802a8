"""Fixtures that the tests of this folder use."""

from ledger_places import ledger as ledger
from ledger_places import pooler as pooler
from ledger_places import postgresql as postgresql
