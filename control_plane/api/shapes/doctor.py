"""What an operator should look at."""

from typing import Literal

from control_plane.api.shapes.common import Request, View

__all__ = ["FindingView", "Findings", "FindingsRequest"]


class FindingsRequest(Request, frozen=True, kw_only=True):
    pass


class FindingView(View, frozen=True, kw_only=True):
    id: str
    """The kind of the finding, such as workflows-stuck."""
    severity: Literal["info", "warning", "error"]
    tenant_id: str
    subject: str
    """`<kind>/<id>`, such as workflow/wf_…"""
    message: str
    hint: str
    """What to do."""


class Findings(View, frozen=True, kw_only=True):
    items: list[FindingView]
    """The gravest first."""
    more: bool
    """There are more of some kind: a hundred of each are shown."""
