"""The server put together: guard, routes, the page."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

import mie
from mie.review import routes_admin, routes_consensus, routes_session, routes_work
from mie.review.desk import Desk
from mie.review.guard import Guard
from mie.review.limiter import Limiter
from mie.review.refusals import Refused

STATIC: Final = Path(__file__).parent / "static"
_CODES: Final = {400: "invalid", 404: "unknown", 405: "unknown", 413: "too_large", 415: "invalid"}


def create_app(desk: Desk, *, url: str, origins: Iterable[str] = ()) -> FastAPI:
    """The ASGI application. It answers only to the hosts of `url` and `origins`; `url` is what links say."""
    app = FastAPI(
        title="mie review",
        version=mie.__version__,
        openapi_url="/api/openapi.json",
        docs_url=None,  # its page loads scripts from elsewhere
        redoc_url=None,
    )
    app.state.desk = desk
    app.state.limiter = Limiter()
    app.state.url = url
    app.state.secure = url.startswith("https:")
    app.add_exception_handler(Refused, _refused)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _invalid)
    for part in (routes_session, routes_work, routes_consensus, routes_admin):
        app.include_router(part.router)
    app.mount("/static", _Static(directory=STATIC), name="static")
    app.add_api_route("/", _page, include_in_schema=False)
    app.add_middleware(Guard, origins={url, *origins}, https=app.state.secure)
    return app


class _Static(StaticFiles):
    """Asked for again each time, answered by 304 while unchanged: an upgrade is seen at once."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers["Cache-Control"] = "no-cache"
        return response


async def _page() -> FileResponse:
    return FileResponse(STATIC / "index.html", headers={"Cache-Control": "no-cache"})


def _refused(_request: Request, refused: Exception) -> Response:
    assert isinstance(refused, Refused)  # noqa: S101
    return JSONResponse(refused.body(), refused.status, headers=refused.headers)


def _http(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101
    refused = Refused(error.status_code, _CODES.get(error.status_code, "invalid"), str(error.detail))
    return JSONResponse(refused.body(), refused.status, headers=error.headers)


def _invalid(_request: Request, error: Exception) -> Response:
    """The first thing that is wrong; what was sent is not sent back."""
    assert isinstance(error, RequestValidationError)  # noqa: S101
    first: dict[str, Any] = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    text = f"{where}: {first['msg']}".encode(errors="replace").decode()
    return JSONResponse(Refused(422, "invalid", text[:500]).body(), 422)
