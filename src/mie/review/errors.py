"""What the server answers when it will not do something."""

from __future__ import annotations

from pydantic import BaseModel


class Refused(Exception):  # noqa: N818 (an answer, not a fault)
    """An HTTP status, a word for programs and a sentence for people."""

    def __init__(self, status: int, code: str, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = headers or {}

    def body(self) -> dict[str, dict[str, str]]:
        return {"error": {"code": self.code, "message": self.message}}


class Problem(BaseModel):
    code: str
    message: str


class ErrorBody(BaseModel):
    """The body of every refusal."""

    error: Problem
