"""The rater's work."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool

from mie.review.door import ItemId, Rater, TheDesk, refusals
from mie.review.kinds import Answer, Kind
from mie.review.refusals import Refused

router = APIRouter(prefix="/api", tags=["work"])

Key = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{8,64}$")]
_FOREVER = "private, max-age=31536000, immutable"


class Wish(BaseModel):
    model_config = ConfigDict(extra="forbid")
    count: int = Field(1, ge=1, le=10)


class Given(BaseModel):
    model_config = ConfigDict(extra="forbid")
    key: Key
    version: str = Field(pattern=r"^[0-9a-f]{32}$")
    seconds: float = Field(ge=0, le=86400, allow_inf_nan=False)
    answer: Answer


class Undo(BaseModel):
    model_config = ConfigDict(extra="forbid")
    key: Key


@router.get("/tasks/{kind}", responses=refusals(404))
def task(kind: Kind, desk: TheDesk, session: Rater) -> dict[str, Any]:
    return desk.about(kind, session)


@router.post("/tasks/{kind}/next", responses=refusals(404))
def next_items(kind: Kind, body: Wish, desk: TheDesk, session: Rater) -> dict[str, Any]:
    """What to do now, and what will come after it."""
    return desk.next(kind, session, body.count)


@router.get("/tasks/{kind}/history", responses=refusals(404))
def history(
    kind: Kind,
    desk: TheDesk,
    session: Rater,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    before: Annotated[int | None, Query(ge=1, le=2**31 - 1)] = None,
) -> dict[str, Any]:
    """One's own answers, newest first."""
    return desk.history(kind, session, before, limit)


@router.get("/items/{item_id}", responses=refusals(404))
def item(item_id: ItemId, desk: TheDesk, session: Rater) -> dict[str, Any]:
    return desk.item(item_id, session)


@router.get(
    "/items/{item_id}/images/{name}",
    response_class=Response,
    responses={200: {"content": {"image/png": {}}}, 304: {"description": "unchanged"}, **refusals(404)},
)
def image(
    item_id: ItemId,
    name: Annotated[str, Path(pattern=r"^[a-z0-9-]{1,80}$")],
    desk: TheDesk,
    session: Rater,
    side: Literal["256", "512", "1024", "2048"] | None = None,
    v: Annotated[str, Query(max_length=32)] = "",
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response:
    """A picture of an item, at most `side` pixels long. What an item shows never changes."""
    version = desk.version(item_id, session)
    headers = {
        "ETag": f'"{version}-{name}-{side or "full"}"',
        "Cache-Control": _FOREVER if v and version.startswith(v) else "private, no-cache",
    }
    if if_none_match == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    png = desk.picture(item_id, name, int(side) if side else None, session)
    return Response(png, media_type="image/png", headers=headers)


@router.post("/items/{item_id}/answers", status_code=201, responses=refusals(404, 409))
def answer(item_id: ItemId, body: Given, response: Response, desk: TheDesk, session: Rater) -> dict[str, Any]:
    """Kept before this returns. The same key sent again changes nothing and answers 200."""
    given = body.answer.model_dump(mode="json")
    event, new, progress = desk.answer(session, item_id, body.key, body.version, body.seconds, given)
    response.status_code = 201 if new else 200
    return {"event": event, "item": item_id, "progress": progress}


@router.post("/items/{item_id}/undo", responses=refusals(404, 409))
def undo(item_id: ItemId, body: Undo, desk: TheDesk, session: Rater) -> dict[str, Any]:
    """Take back one's last answer of this item; the one before it holds again."""
    return desk.undo(session, item_id, body.key)


@router.put(
    "/items/{item_id}/mask",
    responses=refusals(404, 409, 415),
    openapi_extra={
        "requestBody": {
            "content": {"image/png": {"schema": {"type": "string", "format": "binary"}}},
            "required": True,
        }
    },
)
async def upload_mask(item_id: ItemId, request: Request, desk: TheDesk, session: Rater) -> dict[str, str]:
    """A repaired mask as PNG."""
    if request.headers.get("content-type", "").split(";")[0].strip().lower() != "image/png":
        raise Refused(415, "invalid", "send the mask as image/png")
    return await run_in_threadpool(desk.upload, session, item_id, await request.body())
