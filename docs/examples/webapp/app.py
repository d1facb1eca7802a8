"""Boards in the browser: sign in, look at a board, add and move cards, upload many of them and watch.

It serves any number of worker processes: tokens, uploads and their progress are in files, the rest is in signed cookies.
"""

from __future__ import annotations

import asyncio
import base64
import csv
import io
import json
import logging
import os
import re
import secrets
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Depends, FastAPI, Form, Request, UploadFile
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from fastapi.staticfiles import StaticFiles
from fastapi.templating import Jinja2Templates
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from boardclient import AsyncSession, BoardClientError, BulkProgress, CardDraft, JournalError
from boardclient.integrations.fastapi import FastAPIBoards
from boardclient.web import SignIn

HERE = Path(__file__).parent
LARGEST_UPLOAD_BYTES = 2**20
PAGE_SECONDS = 8.0
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
PROBLEM = "application/problem+json"
logger = logging.getLogger("webapp")

boards = FastAPIBoards(SignIn.from_env)
Account = Annotated[str, Depends(boards.user_account)]
UploadSession = Annotated[AsyncSession, Depends(boards.user_session)]


async def page_session(session: UploadSession) -> AsyncSession:
    """Return the user's session for a page: people don't wait as long as uploads may."""
    return session.with_options(timeout=PAGE_SECONDS)


Session = Annotated[AsyncSession, Depends(page_session)]
Text = Annotated[str, Form(min_length=1)]


# --- the application's life

stopping = threading.Event()
uploads_running: dict[str, asyncio.Task[None]] = {}


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Keep one session for all users; at the end stop the uploads, whose journals go on at the next start."""
    end_streams_on_signals()
    async with boards.lifespan():
        yield
        for task in list(uploads_running.values()):
            task.cancel()
        await asyncio.gather(*uploads_running.values(), return_exceptions=True)


def end_streams_on_signals() -> None:
    """End event streams on SIGTERM and SIGINT: servers wait for open responses before they end the lifespan."""
    stopping.clear()
    if threading.current_thread() is not threading.main_thread():  # in tests: only the main thread may set handlers
        return
    for number in (signal.SIGINT, signal.SIGTERM):
        servers = signal.getsignal(number)

        def stop(number: int, frame: Any, servers: Any = servers) -> None:
            stopping.set()
            if callable(servers):
                servers(number, frame)

        signal.signal(number, stop)


class Guard:
    """Refuse what other sites' pages send, and add the headers that keep browsers careful.

    A browser says where a request comes from in Sec-Fetch-Site, an old one in Origin; programs send neither, and have no cookies
    of users (https://words.filippo.io/csrf).
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        headers = Headers(scope=scope)
        site, origin = headers.get("sec-fetch-site"), headers.get("origin")
        is_foreign = site not in ("same-origin", "none") if site else origin and origin.partition("://")[2] != headers.get("host")
        if is_foreign and scope["method"] not in ("GET", "HEAD"):
            await Response("This form was sent by another site.", 403)(scope, receive, send_guarded)
        else:
            await self.app(scope, receive, send_guarded)


def shown_account(request: Request) -> dict[str, Any]:
    """Give all templates the signed-in user's account, for the menu."""
    return {"account": boards.sign_in.account_of_request(request.cookies)}


app = FastAPI(title="Boards", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
app.add_middleware(Guard)
app.mount("/static", StaticFiles(directory=HERE / "static"), name="static")
boards.install(app)
templates = Jinja2Templates(HERE / "templates", context_processors=[shown_account])


def page(request: Request, name: str, status: int = 200, **values: Any) -> Response:
    """Return a page, which no cache keeps."""
    return templates.TemplateResponse(request, name, values, status, {"Cache-Control": "no-store"})


def wants_json(request: Request) -> bool:
    """Return whether a program asks, which says so."""
    return "application/json" in request.headers.get("accept", "")


def back_to(path: str) -> Response:
    """Send the browser to a page after a form, so that a reload does not send the form again."""
    return RedirectResponse(path, 303, {"Cache-Control": "no-store"})


async def show_error(request: Request, error: Exception) -> Response:
    """Show an error as a page to people, as a problem document to programs."""
    if isinstance(error, HTTPException):
        document = {"title": HTTPStatus(error.status_code).phrase, "status": error.status_code, "detail": error.detail}
        problem: Response = JSONResponse(document, error.status_code, error.headers, PROBLEM)
    elif isinstance(error, RequestValidationError):
        problem = JSONResponse({"title": "Bad Request", "status": 400, "detail": "something is missing"}, 400, None, PROBLEM)
    else:
        problem = await boards.handle(request, error)
    if problem.status_code < 400 or "text/html" not in request.headers.get("accept", ""):
        return problem
    response = page(request, "error.html", problem.status_code, problem=json.loads(bytes(problem.body)))
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
    return JSONResponse({"id": member.id}) if wants_json(request) else page(request, "me.html", member=member)


@app.get("/boards")
async def open_board(board_id: str = "") -> Response:
    """Open the board whose identifier was typed."""
    return back_to(f"/boards/{quote(board_id.strip(), safe='')}" if board_id.strip() else "/")


@app.post("/boards")
async def create_board(request: Request, session: Session, account: Account, name: Text) -> Response:
    """Create a board with the three default lists."""
    board = await session.boards.create(name, default_lists=True)
    response = back_to(f"/boards/{quote(board.id, safe='')}")
    remember_board(request, response, account, board.id, name)
    return response


@app.get("/boards/{board_id}")
async def show_board(request: Request, session: Session, account: Account, board_id: str) -> Response:
    """Show the lists of a board with their cards."""
    lists, cards = await asyncio.gather(session.boards.lists(board_id), session.boards.cards(board_id))
    if wants_json(request):
        found = {"lists": [one.to_dict() for one in lists], "cards": [one.to_dict() for one in cards]}
        return JSONResponse({"id": board_id, **found})
    shown = [(one, [card for card in cards if card.list_id == one.id]) for one in lists]
    known = {one.id for one in lists}
    response = page(
        request,
        "board.html",
        board_id=board_id,
        title=known_boards(request).get(board_id) or "Board",
        lists=[(one, held) for one, held in shown if held or not one.closed],
        targets=[one for one in lists if not one.closed],
        others=[card for card in cards if card.list_id not in known],
    )
    remember_board(request, response, account, board_id)
    return response


@app.post("/boards/{board_id}/cards")
async def add_card(session: Session, board_id: str, name: Text, list_id: Text) -> Response:
    """Add a card, and go back to where the next one is typed."""
    await session.cards.create(name, list_id=list_id)
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
        return {str(board_id): str(name) for board_id, name in found.items()} if is_own else {}
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


class Upload:
    """A file of cards on its way to the board: a folder with what to create, the journal of the run, and how far it is.

    All workers read the folder; the one that has the journal open runs the upload. An upload that a worker left behind goes on as
    soon as somebody watches it.
    """

    def __init__(self, upload_id: str) -> None:
        self.id = upload_id
        self.folder = Path(os.environ["BOARDCLIENT_TOKENS"] + ".uploads", upload_id)

    @classmethod
    def create(cls, account: str, board_id: str, list_id: str, rows: list[dict[str, str]]) -> Upload:
        """Store what to create."""
        upload = cls(secrets.token_hex(16))
        upload.folder.mkdir(mode=0o700, parents=True)
        upload.save("plan", {"account": account, "board_id": board_id, "list_id": list_id, "rows": rows})
        upload.save("state", {"number": 1, "total": len(rows), "done": 0, "failed": [], "waiting_for": None, "ended": None})
        return upload

    def load(self, name: str) -> dict[str, Any]:
        """Read one of the files."""
        loaded: dict[str, Any] = json.loads((self.folder / f"{name}.json").read_bytes())
        return loaded

    def save(self, name: str, value: dict[str, Any]) -> None:
        """Write one of the files, whole: who reads it meanwhile sees the old one."""
        draft = self.folder / f"{name}.new"
        draft.write_text(json.dumps(value))
        draft.replace(self.folder / f"{name}.json")

    def note(self, **changes: Any) -> None:
        """Write how far the upload is, for all who watch."""
        state = self.load("state")
        self.save("state", {**state, **changes, "number": state["number"] + 1})

    async def run(self, session: AsyncSession) -> None:
        """Create the cards; what an earlier run has created is not created again."""
        plan = self.load("plan")

        def show(progress: BulkProgress) -> None:
            self.note(done=progress.done, waiting_for=progress.waiting_for)

        try:
            drafts = [CardDraft(name=row["name"], list_id=plan["list_id"], desc=row["desc"] or None) for row in plan["rows"]]
            run = session.cards.create_many(drafts, journal=self.folder / "journal", board_id=plan["board_id"], on_progress=show)
            async with run:
                bad = [{"name": result.draft.name, "state": result.state} async for result in run if result.error]
                self.note(done=len(drafts), failed=bad, waiting_for=None, ended="finished")
        except JournalError as error:
            logger.info("upload %s is not run here: %s", self.id, error)  # most likely by another worker
        except BoardClientError as error:
            logger.warning("upload %s failed: %s", self.id, error)
            self.note(waiting_for=None, ended="failed")

    def start(self, session: AsyncSession) -> None:
        """Run the upload in the background, unless it runs or has ended."""
        if self.id not in uploads_running and self.load("state")["ended"] is None:
            task = uploads_running[self.id] = asyncio.create_task(self.run(session))
            task.add_done_callback(lambda _: uploads_running.pop(self.id))

    async def states(self, after: int, request: Request) -> AsyncIterator[dict[str, Any]]:
        """Yield how far the upload is, whenever that has changed, until it has ended or nobody listens."""
        while not (stopping.is_set() or await request.is_disconnected()):
            state = self.load("state")
            if state["number"] > after:
                after = state["number"]
                yield state
            if state["ended"] is not None:
                return
            await asyncio.sleep(0.1)


async def own_upload(upload_id: str, account: Account) -> Upload:
    """Return an upload of the signed-in user."""
    upload = Upload(upload_id)
    if not re.fullmatch("[0-9a-f]{32}", upload_id) or not upload.folder.is_dir() or upload.load("plan")["account"] != account:
        raise HTTPException(404, "There is no such upload")
    return upload


OwnUpload = Annotated[Upload, Depends(own_upload)]


def rows_of(content: bytes) -> list[dict[str, str]]:
    """Return the rows of a CSV file with a column `name` and, where wanted, `desc`."""
    try:
        reader = csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline=""), restval="", strict=True)
        rows = [{"name": row.get("name", ""), "desc": row.get("desc", "")} for row in reader]
    except (UnicodeDecodeError, csv.Error):
        raise HTTPException(400, "This is not a CSV file in UTF-8") from None
    if not rows or not all(row["name"] for row in rows):
        raise HTTPException(400, "The file needs a first line with a column “name”, and a name in every row below")
    return rows


@app.post("/boards/{board_id}/uploads")
async def upload_cards(session: UploadSession, account: Account, board_id: str, list_id: Text, file: UploadFile) -> Response:
    """Take a file of cards, begin to create them, and show the progress."""
    content = await file.read(LARGEST_UPLOAD_BYTES + 1)
    if len(content) > LARGEST_UPLOAD_BYTES:
        raise HTTPException(413, "The file is larger than 1 MiB")
    upload = Upload.create(account, board_id, list_id, rows_of(content))
    upload.start(session)
    return back_to(f"/uploads/{upload.id}")


@app.get("/uploads/{upload_id}")
async def show_upload(request: Request, upload: OwnUpload) -> Response:
    """Show the progress of an upload."""
    return page(request, "upload.html", upload=upload, board_id=upload.load("plan")["board_id"], state=upload.load("state"))


@app.get("/uploads/{upload_id}/events")
async def stream_upload(request: Request, session: UploadSession, upload: OwnUpload) -> Response:
    """Send the progress of an upload as server-sent events.

    The number of an event is that of the state, so that a browser that comes back is sent what it has not seen. The response
    begins with the first event: whatever fails before is an error with its own status.
    """
    upload.start(session)
    last = request.headers.get("last-event-id", "")
    states = upload.states(int(last) if re.fullmatch("[0-9]{1,9}", last) else 0, request)
    first = await anext(states, None)
    if first is None:
        return Response(status_code=204)  # the browser does not come back

    async def events() -> AsyncIterator[str]:
        yield event(first)
        async for state in states:
            yield event(state)

    return StreamingResponse(events(), 200, {"Cache-Control": "no-store"}, "text/event-stream")


def event(state: dict[str, Any]) -> str:
    """Return a state as an event; the browser comes back after a second when the stream breaks."""
    return f"retry: 1000\nid: {state['number']}\ndata: {json.dumps(state)}\n\n"
