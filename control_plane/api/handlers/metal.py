"""Provisioning: the verbs that move a machine."""

from collections.abc import Callable

from control_plane.api.call import Call
from control_plane.api.handlers.nodes import seen
from control_plane.api.shapes.metal import (
    AbortNode,
    CommissionNode,
    DeployNode,
    MaintainNode,
    RecoverNode,
    ReleaseNode,
    RescueNode,
)
from control_plane.api.shapes.nodes import NodeView
from control_plane.metal import verbs
from control_plane.metal.rows import Asked, lock_provision
from control_plane.metal.states import MetalVerb
from control_plane.store import Transaction

__all__ = ["abort", "audited", "commission", "deploy", "maintain", "recover", "release", "rescue"]

_Request = CommissionNode | DeployNode | ReleaseNode | RescueNode


def deploy(tx: Transaction, call: Call, request: DeployNode) -> NodeView:
    asked = Asked(
        image=request.image,
        root_device=request.root_device,
        user_data=request.user_data,
        meta_data=request.meta_data,
        network_data=request.network_data,
    )
    return _begin(tx, call, request, MetalVerb.DEPLOY, asked)


def _starting(verb: MetalVerb) -> Callable[[Transaction, Call, _Request], NodeView]:
    def work(tx: Transaction, call: Call, request: _Request) -> NodeView:
        return _begin(tx, call, request, verb, Asked())

    return work


commission = _starting(MetalVerb.COMMISSION)
release = _starting(MetalVerb.RELEASE)
rescue = _starting(MetalVerb.RESCUE)


def abort(tx: Transaction, call: Call, request: AbortNode) -> NodeView:
    node, row = lock_provision(tx, call.tenant, request.node_id)
    verbs.abort(tx, call.services.timing, node, row, request.reason)
    return seen(tx, node)


def recover(tx: Transaction, call: Call, request: RecoverNode) -> NodeView:
    node, row = lock_provision(tx, call.tenant, request.node_id)
    verbs.recover(tx, call.services.metal, node, row, call.principal.id, as_it_is=request.as_it_is)
    return seen(tx, node)


def maintain(tx: Transaction, call: Call, request: MaintainNode) -> NodeView:
    node, row = lock_provision(tx, call.tenant, request.node_id)
    if request.maintenance == "on":
        verbs.start_maintenance(tx, node, row, request.reason)
    else:
        verbs.end_maintenance(tx, node, row)
    return seen(tx, node)


def audited(answer: NodeView) -> tuple[str, dict[str, object]]:
    return answer.id, {"state": answer.state, "workflowId": answer.provision.workflow_id}


def _begin(tx: Transaction, call: Call, request: _Request, verb: MetalVerb, asked: Asked) -> NodeView:
    node, row = lock_provision(tx, call.tenant, request.node_id)
    wish = verbs.Wish(verb, call.principal.id, asked, request.profile, request.version)
    verbs.begin(tx, call.services.metal, node, row, wish)
    return seen(tx, node)
