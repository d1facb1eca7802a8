"""FastAPI: Starlette's adapter. Its routes stay out of the OpenAPI document, and its dependencies serve `Depends`."""

from __future__ import annotations

from boardclient.integrations.starlette import StarletteBoards as FastAPIBoards

__all__ = ["FastAPIBoards"]
