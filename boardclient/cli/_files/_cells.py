"""What the formats of files share: the cells of a row, and what stands in cells beside their values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeAlias

_FORMULA = re.compile("'*[=+@\t\r\n\ufeff\uff1d\uff0b\uff0d\uff20-]")
"""The beginning of a cell that would be taken for a formula, or for the mark of a file, after apostrophes. An export puts one
before it, and an import takes one away (https://owasp.org/www-community/attacks/CSV_Injection). Spreadsheets of East Asia take
the wide signs as well."""
UNSAFE = frozenset("'=+@\t\r\n\ufeff\uff1d\uff0b\uff0d\uff20-")
"""The first characters of such a cell."""
JOINED = "so several files were joined"
MARKED = f"begins with the mark of a file, {JOINED}; take the mark out"


Cells: TypeAlias = Mapping[str, str]
NumberedCells: TypeAlias = tuple[int, Cells, Mapping[str, str]]
"""The number of a row, its cells by our columns, and the columns as the file names them."""


def defused(cell: str) -> str:
    """Return a cell as an export writes it, which no spreadsheet takes for a formula."""
    return f"'{cell}" if _FORMULA.match(cell) else cell


def is_defused(cell: str) -> bool:
    """Return True if an export has put an apostrophe before a cell."""
    return cell.startswith("'") and _FORMULA.match(cell) is not None
