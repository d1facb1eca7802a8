"""FastAPI: Starlette's adapter. Its routes stay out of the OpenAPI document, and its dependencies serve `Depends`."""

from __future__ import annotations

from boardclient._base._environment import requires_extra

with requires_extra("fastapi", __name__):
    from boardclient.integrations.starlette import ModelJSONResponse
    from boardclient.integrations.starlette import StarletteBoards as FastAPIBoards

__all__ = ["FastAPIBoards", "ModelJSONResponse"]
