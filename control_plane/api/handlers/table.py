"""Which handler does which verb."""

from collections.abc import Mapping

from control_plane.api.call import Handler
from control_plane.api.handlers import (
    agents,
    commands,
    doctor,
    drivers,
    history,
    nodes,
    profiles,
    sites,
    tokens,
    workflows,
)

__all__ = ["HANDLERS"]

HANDLERS: Mapping[str, Handler] = {
    "sites.create": Handler(sites.create),
    "sites.get": Handler(sites.get),
    "sites.list": Handler(sites.list_),
    "sites.update": Handler(sites.update),
    "agents.get": Handler(agents.get),
    "agents.list": Handler(agents.list_),
    "agents.revoke": Handler(agents.revoke),
    "joinTokens.create": Handler(agents.create_join),
    "joinTokens.list": Handler(agents.list_joins),
    "joinTokens.revoke": Handler(agents.revoke_join),
    "tokens.create": Handler(tokens.create),
    "tokens.list": Handler(tokens.list_),
    "tokens.revoke": Handler(tokens.revoke, then=tokens.then_revoked),
    "nodes.create": Handler(nodes.create),
    "nodes.get": Handler(nodes.get),
    "nodes.list": Handler(nodes.list_),
    "nodes.update": Handler(nodes.update),
    "nodes.delete": Handler(nodes.delete),
    "drivers.invoke": Handler(around=drivers.invoke),
    "drivers.operations": Handler(drivers.operations),
    "drivers.matrix": Handler(drivers.matrix),
    "commands.get": Handler(around=commands.get),
    "commands.list": Handler(commands.list_),
    "commands.cancel": Handler(commands.cancel),
    "profiles.create": Handler(profiles.create, audited=profiles.audited),
    "profiles.validate": Handler(profiles.validate),
    "profiles.get": Handler(profiles.get),
    "profiles.list": Handler(profiles.list_),
    "profiles.versions": Handler(profiles.versions),
    "profiles.diff": Handler(profiles.diff),
    "workflows.get": Handler(around=workflows.get),
    "workflows.list": Handler(workflows.list_),
    "workflows.abort": Handler(workflows.abort, audited=workflows.audited),
    "workflows.retry": Handler(workflows.retry, audited=workflows.audited),
    "workflows.pause": Handler(workflows.pause, audited=workflows.audited),
    "workflows.resume": Handler(workflows.resume, audited=workflows.audited),
    "doctor.findings": Handler(doctor.findings),
    "events.list": Handler(history.events_list),
    "audit.list": Handler(history.audit_list),
}
