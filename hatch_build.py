"""Give the package index the README with links that lead to the repository: a relative link works only there."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class ReadmeHook(MetadataHookInterface):
    """Called by hatchling when it builds."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the text of the README."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        source = metadata["urls"]["Source"]
        text = re.sub(r"(!\[[^]]*\]\()(?!\w+:)", rf"\1{source}/raw/main/", text)  # a picture, not the page that shows it
        base = f"{source}/blob/main/"
        text = re.sub(r"\]\((?!\w+:|#)([^)]+)\)", rf"]({base}\1)", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
