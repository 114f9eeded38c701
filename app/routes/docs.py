"""Owns `/docs`, the reference page.

Knows nothing of what is on it: app/reference.py makes it from the routes themselves.
"""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse

from app.reference import render_reference

PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

router = APIRouter(tags=["service"])


@router.get("/docs", response_model=None, include_in_schema=False)
async def show_reference(request: Request) -> Response:
    page = render_reference(request.app.openapi())
    return HTMLResponse(page, headers={"Content-Security-Policy": PAGE_POLICY})
