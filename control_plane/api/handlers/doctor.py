"""What an operator should look at."""

from control_plane.api.call import Call
from control_plane.api.shapes.doctor import Findings, FindingsRequest, FindingView
from control_plane.doctor import examine
from control_plane.store import Transaction

__all__ = ["findings"]


def findings(tx: Transaction, call: Call, request: FindingsRequest) -> Findings:
    found, more = examine(tx, call.tenant_id, call.services.timing)
    return Findings(
        items=[
            FindingView(
                id=finding.id,
                severity=finding.severity,
                tenant_id=finding.tenant_id,
                subject=finding.subject,
                message=finding.message,
                hint=finding.hint,
            )
            for finding in found
        ],
        more=more,
    )
