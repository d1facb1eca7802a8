"""Boards in the browser: sign in, look at a board, add and move cards, upload many of them and watch.

It serves any number of worker processes: tokens and uploads are in files, the rest is in signed cookies.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

from boardclient import AsyncSession, BoardClientError, Card
from boardclient.integrations.asgi import IncomingRequest, Problem
from boardclient.integrations.fastapi import FastAPIBoards
from boardclient.web import SignIn
from fastapi import Depends, FastAPI, Form, Request, UploadFile
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from fastapi.staticfiles import StaticFiles
from fastapi.templating import Jinja2Templates
from guard import Guard
from once import Once
from starlette.exceptions import HTTPException
from uploads import Upload, end_streams_on_signals, left_uploads, rows_of, stop_uploads

HERE = Path(__file__).parent
PAGE_SECONDS = 8.0
CARDS_SHOWN = 50
PRIVATE = {"Cache-Control": "no-store", "Vary": "Accept"}
"""Of what belongs to a user: no cache keeps it, and none takes JSON for the page of the same address."""
PROBLEM = "application/problem+json"

boards = FastAPIBoards(SignIn.from_env)
Account = Annotated[str, Depends(boards.user_account)]
UploadSession = Annotated[AsyncSession, Depends(boards.user_session)]


async def page_session(session: UploadSession) -> AsyncSession:
    """Return the user's session for a page, which must not take as long as an upload may."""
    return session.with_options(timeout=PAGE_SECONDS)


Session = Annotated[AsyncSession, Depends(page_session)]
Text = Annotated[str, Form(min_length=1)]


def sent_once(form: Annotated[str, Form()] = "") -> Once:
    """Return what lets a form be carried out once, however often its button is clicked."""
    return Once(Path(os.environ["BOARDCLIENT_TOKENS"] + ".forms"), form)


FormOnce = Annotated[Once, Depends(sent_once)]


# --- the application's life


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Keep one session for all users, resume the uploads that were left, and stop those that run at the end."""
    end_streams_on_signals()
    async with boards.lifespan():
        for upload, account in left_uploads():
            upload.start(boards.sign_in.session_for(account))
        yield
        await stop_uploads()


def shown_account(request: Request) -> dict[str, Any]:
    """Give all templates the signed-in user's account, for the menu."""
    return {"account": boards.sign_in.account_of_request(request.cookies)}


app = FastAPI(title="Boards", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
app.mount("/static", StaticFiles(directory=HERE / "static"), name="static")
boards.install(app)
app.add_middleware(Guard)
templates = Jinja2Templates(HERE / "templates", context_processors=[shown_account])
templates.env.globals["new_form"] = Once.new_form


def page(request: Request, name: str, status: int = 200, **values: Any) -> Response:
    """Return a page that is not cached."""
    return templates.TemplateResponse(request, name, values, status, PRIVATE)


def wants_json(request: Request) -> bool:
    """Return True if a program asks for JSON."""
    return "application/json" in request.headers.get("accept", "")


def back_to(path: str) -> Response:
    """Send the browser to a page after a form, so that reloading does not send the form again."""
    return RedirectResponse(path, 303, {"Cache-Control": "no-store"})


async def show_error(request: Request, error: Exception) -> Response:
    """Show an error as a page to people, as a problem document to programs and scripts."""
    if isinstance(error, HTTPException):
        document = {"title": HTTPStatus(error.status_code).phrase, "status": error.status_code, "detail": error.detail}
        problem: Response = JSONResponse(document, error.status_code, error.headers, PROBLEM)
    elif isinstance(error, RequestValidationError):
        problem = JSONResponse({"title": "Bad Request", "status": 400, "detail": "something is missing"}, 400, None, PROBLEM)
    else:
        problem = await boards.handle(request, error)
    if problem.status_code < 400 or not IncomingRequest.of_scope(request.scope).wants_page:
        return problem
    known = isinstance(error, HTTPException | RequestValidationError)
    document = json.loads(bytes(problem.body)) if known else dict(Problem.of(error).document)
    board = re.match("/boards/[^/]+(?=/)", request.url.path)  # of a form: it leads back to its board
    back = board[0] if board else "/"
    response = page(request, "error.html", problem.status_code, problem=document, back=back)
    for name, value in problem.headers.items():
        if name in ("allow", "retry-after", "set-cookie"):
            response.headers.append(name, value)
    return response


for kind in (BoardClientError, ExceptionGroup, HTTPException, RequestValidationError):
    app.add_exception_handler(kind, show_error)


# --- the user and the boards


@app.get("/")
async def show_home(request: Request) -> Response:
    """Show the user's boards: those opened in this browser, since the service does not list them."""
    return page(request, "home.html", boards=known_boards(request))


@app.get("/me")
async def show_member(request: Request, session: Session) -> Response:
    """Show who is signed in."""
    member = await session.members.me()
    return JSONResponse({"id": member.id}, headers=PRIVATE) if wants_json(request) else page(request, "me.html", member=member)


@app.get("/boards")
async def open_board(board_id: str = "") -> Response:
    """Open the board whose identifier was typed."""
    return back_to(f"/boards/{quote(board_id.strip(), safe='')}" if board_id.strip() else "/")


@app.post("/boards")
async def create_board(request: Request, session: Session, account: Account, name: Text, once: FormOnce) -> Response:
    """Create a board with the three default lists."""

    async def create() -> str:
        return (await session.boards.create(name, default_lists=True)).id

    board_id = await once.run(create)
    response = back_to(f"/boards/{quote(board_id, safe='')}")
    remember_board(request, response, account, board_id, name)
    return response


@app.get("/boards/{board_id}")
async def show_board(
    request: Request, session: Session, account: Account, board_id: str, list_id: str = "", start: int = 0
) -> Response:
    """Show the lists of a board with their cards, or one list from a card on."""
    if wants_json(request):
        lists, cards = await asyncio.gather(session.boards.lists(board_id), session.boards.cards(board_id))
        found = {"lists": [one.to_dict() for one in lists], "cards": [one.to_dict() for one in cards]}
        return JSONResponse({"id": board_id, **found}, headers=PRIVATE)
    return await board_page(request, session, account, board_id, list_id, max(0, start))


async def board_page(
    request: Request,
    session: AsyncSession,
    account: str,
    board_id: str,
    list_id: str = "",
    start: int = 0,
    status: int = 200,
    **values: Any,
) -> Response:
    """Return the page of a board. Each list shows some of its cards: a board may have 20,000."""
    lists, cards = await asyncio.gather(session.boards.lists(board_id), session.boards.cards(board_id))
    known = {one.id for one in lists}
    held: dict[str, list[Card]] = {}
    for card in cards:
        held.setdefault(card.list_id if card.list_id in known else "", []).append(card)
    response = page(
        request,
        "board.html",
        status,
        board_id=board_id,
        title=known_boards(request).get(board_id) or "Board",
        lists=[(one, held.get(one.id, [])) for one in lists if list_id in ("", one.id) and (one.id in held or not one.closed)],
        targets=[one for one in lists if not one.closed],
        others=[] if list_id else held.get("", []),
        list_id=list_id,
        start=start,
        shown=CARDS_SHOWN,
        **values,
    )
    remember_board(request, response, account, board_id)
    return response


@app.post("/boards/{board_id}/cards")
async def add_card(session: Session, board_id: str, name: Text, list_id: Text, once: FormOnce) -> Response:
    """Add a card, and go back to where the next one is typed."""

    async def add() -> str:
        return (await session.cards.create(name, list_id=list_id)).id

    await once.run(add)
    return back_to(f"/boards/{quote(board_id, safe='')}#add-{quote(list_id, safe='')}")


@app.post("/boards/{board_id}/moves")
async def move_card(session: Session, board_id: str, card_id: Text, list_id: Text) -> Response:
    """Move a card to another list, and go back to the card."""
    await session.cards.move(card_id, list_id=list_id)
    return back_to(f"/boards/{quote(board_id, safe='')}#card-{quote(card_id, safe='')}")


def known_boards(request: Request) -> dict[str, str]:
    """Return the identifiers and names of the boards that the user opened in this browser, the latest first."""
    try:
        account, found = json.loads(base64.urlsafe_b64decode(request.cookies.get("boards", "")))
        is_own = account == boards.sign_in.account_of_request(request.cookies)
        known = {str(board_id): str(name) for board_id, name in found.items()} if is_own else {}
        "".join([*known, *known.values()]).encode()  # no page could show what can't be encoded
        return known
    except (ValueError, TypeError, AttributeError, RecursionError):  # no cookie, or one that this application did not write
        return {}


def remember_board(request: Request, response: Response, account: str, board_id: str, name: str = "") -> None:
    """Put a board in front of those that the browser remembers, ten at most."""
    known = known_boards(request)
    latest = {board_id: name[:40] or known.pop(board_id, "")} | {key: known[key] for key in list(known)[:9] if key != board_id}
    value = base64.urlsafe_b64encode(json.dumps([account, latest], ensure_ascii=False).encode()).decode()
    is_secure = request.url.scheme == "https"
    response.set_cookie("boards", value, max_age=365 * 24 * 3600, secure=is_secure, httponly=True, samesite="lax")


# --- uploads


async def own_upload(upload_id: str, account: Account) -> Upload:
    """Return an upload of the signed-in user."""
    upload = Upload(upload_id)
    if not re.fullmatch("[0-9a-f]{32}", upload_id) or not upload.exists or upload.load("plan")["account"] != account:
        raise HTTPException(404, "There is no such upload")
    return upload


OwnUpload = Annotated[Upload, Depends(own_upload)]


@app.post("/boards/{board_id}/uploads")
async def upload_cards(
    request: Request,
    session: UploadSession,
    account: Account,
    board_id: str,
    list_id: Text,
    file: UploadFile,
    once: FormOnce,
) -> Response:
    """Take a file of cards, begin to create them, and show the progress.

    A wrong file leads back to the board, where the list is still chosen.
    """
    try:
        rows = rows_of(await file.read())
    except ValueError as error:
        if not IncomingRequest.of_scope(request.scope).wants_page:
            raise HTTPException(400, str(error)) from None
        reading = await page_session(session)
        return await board_page(request, reading, account, board_id, status=400, mistake=str(error), chosen=list_id)

    async def begin() -> str:
        upload = Upload.create(account, board_id, list_id, rows)
        upload.start(session)
        return upload.id

    return back_to(f"/uploads/{await once.run(begin)}")


@app.get("/uploads/{upload_id}")
async def show_upload(request: Request, upload: OwnUpload) -> Response:
    """Show the progress of an upload."""
    return page(request, "upload.html", upload=upload, board_id=upload.load("plan")["board_id"], state=upload.load("state"))


@app.get("/uploads/{upload_id}/events")
async def stream_upload(request: Request, session: UploadSession, upload: OwnUpload) -> Response:
    """Send the progress of an upload as server-sent events.

    An event has the number of its state, so that a browser that reconnects gets what it has not seen. The response begins with
    the first event: an error before it has its own status.
    """
    upload.start(session)
    last = request.headers.get("last-event-id", "")
    states = upload.states(int(last) if re.fullmatch("[0-9]{1,9}", last) else 0, request.is_disconnected)
    first = await anext(states, None)
    if first is None:
        return Response(status_code=204)  # after which the browser does not reconnect

    async def events() -> AsyncIterator[str]:
        yield event(first)
        async for state in states:
            yield event(state)

    return StreamingResponse(events(), 200, {"Cache-Control": "no-store"}, "text/event-stream")


def event(state: dict[str, Any]) -> str:
    """Return a state as an event. If the stream breaks, the browser reconnects after a second."""
    return f"retry: 1000\nid: {state['number']}\ndata: {json.dumps(state)}\n\n"
