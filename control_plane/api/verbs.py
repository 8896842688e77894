"""The one table of what the HTTP API offers. Router, OpenAPI document, client and command line are read from it.

`POST /api/compute/<group>/<method>`. Importing this loads shapes only, no server.
"""

from collections.abc import Iterator, Mapping

import msgspec

from control_plane.api.shapes import (
    agents,
    boot,
    commands,
    doctor,
    drivers,
    history,
    metal,
    nodes,
    profiles,
    sites,
    tokens,
    workflows,
)
from control_plane.api.shapes.common import Request, View

__all__ = ["PREFIX", "VERBS", "Verb", "kebab"]

PREFIX = "/api/compute"


class Verb(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table."""

    group: str
    method: str
    summary: str
    request: type[Request]
    response: type[View]
    action: str
    """What a token must be allowed."""
    resource: str
    """The kind of thing that it is decided on, as the audit trail names it."""
    subject: str | None = None
    """The request's field that names the thing, where there is one already. The command line takes it by place."""
    mutation: bool = False
    spans: bool = False
    """A token for every tenant may leave the tenant out, and gets all of them."""
    tenantless: bool = False
    """The answer is the same for every tenant."""

    @property
    def id(self) -> str:
        return f"{self.group}.{self.method}"

    @property
    def path(self) -> str:
        return f"{PREFIX}/{self.group}/{self.method}"


def _rows() -> Iterator[Verb]:
    def row(
        identifier: str,
        summary: str,
        request: type[Request],
        response: type[View],
        rights: str,
        subject: str | None = None,
        *,
        resource: str = "",
        spans: bool = False,
        tenantless: bool = False,
    ) -> Verb:
        group, _, method = identifier.partition(".")
        return Verb(
            group=group,
            method=method,
            summary=summary,
            request=request,
            response=response,
            action=f"compute:{kebab(group)}:{rights}",
            resource=resource or f"compute-{kebab(group).removesuffix('s')}",
            subject=subject,
            mutation=rights != "read",
            spans=spans,
            tenantless=tenantless,
        )

    yield row("sites.create", "make a site", sites.CreateSite, sites.SiteView, "manage")
    yield row("sites.get", "show a site", sites.GetSite, sites.SiteView, "read", "siteId")
    yield row("sites.list", "list the sites", sites.ListSites, sites.SiteList, "read")
    yield row("sites.update", "change a site", sites.UpdateSite, sites.SiteView, "manage", "siteId")

    yield row("agents.get", "show an agent", agents.GetAgent, agents.AgentView, "read", "agentId")
    yield row("agents.list", "list the agents", agents.ListAgents, agents.AgentList, "read")
    yield row("agents.revoke", "deny an agent for ever", agents.RevokeAgent, agents.AgentView, "manage", "agentId")

    made = agents.JoinTokenMade
    yield row("joinTokens.create", "make a token with which one agent joins", agents.CreateJoinToken, made, "manage")
    yield row("joinTokens.list", "list the join tokens", agents.ListJoinTokens, agents.JoinTokenList, "read")
    yield row(
        "joinTokens.revoke",
        "end a join token before it is used",
        agents.RevokeJoinToken,
        agents.JoinTokenView,
        "manage",
        "joinTokenId",
    )

    yield row("tokens.create", "make an API token", tokens.CreateToken, tokens.TokenMade, "manage")
    yield row("tokens.list", "list the API tokens", tokens.ListTokens, tokens.TokenList, "read", spans=True)
    yield row(
        "tokens.revoke", "end an API token", tokens.RevokeToken, tokens.TokenView, "manage", "tokenId", spans=True
    )

    yield row("nodes.create", "register a machine", nodes.CreateNode, nodes.NodeView, "manage")
    yield row("nodes.get", "show a machine", nodes.GetNode, nodes.NodeView, "read", "nodeId")
    yield row("nodes.list", "list the machines", nodes.ListNodes, nodes.NodeList, "read")
    yield row("nodes.update", "change a machine's record", nodes.UpdateNode, nodes.NodeView, "manage", "nodeId")
    yield row("nodes.delete", "forget a machine", nodes.DeleteNode, nodes.NodeDeleted, "manage", "nodeId")
    yield row(
        "nodes.getBoot", "show how a machine's ramdisk is started", boot.GetBoot, boot.BootView, "read", "nodeId"
    )
    yield row(
        "nodes.setBoot", "say how a machine's ramdisk is started", boot.SetBoot, boot.BootView, "manage", "nodeId"
    )
    yield row(
        "nodes.createTicket",
        "make a ticket with which a machine's own agent joins",
        boot.CreateTicket,
        boot.TicketMade,
        "manage",
        "nodeId",
    )

    for method, summary, asked in (
        ("commission", "inspect a new machine and make it ready for a system", metal.CommissionNode),
        ("deploy", "put a system onto a machine, and bring it into service", metal.DeployNode),
        ("release", "take a machine out of service, and erase it", metal.ReleaseNode),
        ("rescue", "start the ramdisk on a machine, for whoever looks into it", metal.RescueNode),
        ("abort", "end what moves a machine", metal.AbortNode),
        ("recover", "take a failed or rescued machine back to where it stands", metal.RecoverNode),
        ("maintain", "keep everything off a machine, or let it on again", metal.MaintainNode),
    ):
        yield row(f"nodes.{method}", summary, asked, nodes.NodeView, "manage", "nodeId")

    yield row(
        "drivers.invoke",
        "do one operation on a machine",
        drivers.Invoke,
        commands.CommandView,
        "invoke",
        "nodeId",
        resource="compute-node",
    )
    yield row(
        "drivers.operations",
        "list what can be done to a machine",
        drivers.ListOperations,
        drivers.OperationList,
        "read",
        tenantless=True,
    )
    yield row(
        "drivers.matrix", "list what each connected agent can do", drivers.MatrixRequest, drivers.MatrixList, "read"
    )

    yield row("commands.get", "show a command", commands.GetCommand, commands.CommandView, "read", "commandId")
    yield row("commands.list", "list the commands, newest first", commands.ListCommands, commands.CommandList, "read")
    yield row(
        "commands.cancel", "stop a command", commands.CancelCommand, commands.CommandView, "manage", "commandId"
    )

    yield row(
        "profiles.create",
        "store a profile, as a new version",
        profiles.CreateProfile,
        profiles.ProfileCreated,
        "manage",
    )
    yield row(
        "profiles.validate",
        "list every fault of a profile, or the steps that it makes",
        profiles.ValidateProfile,
        profiles.ProfileValidation,
        "read",
        tenantless=True,
    )
    yield row("profiles.get", "show a profile", profiles.GetProfile, profiles.ProfileView, "read", "profileId")
    yield row("profiles.list", "list the profiles", profiles.ListProfiles, profiles.ProfileList, "read")
    yield row(
        "profiles.versions",
        "list a profile's versions, newest first",
        profiles.ListVersions,
        profiles.ProfileList,
        "read",
        "profileId",
    )
    yield row(
        "profiles.diff",
        "show what differs between two versions",
        profiles.DiffProfile,
        profiles.ProfileDiff,
        "read",
        "profileId",
    )

    for method, summary, request, response, rights in (
        ("get", "show a workflow with its steps", workflows.GetWorkflow, workflows.WorkflowView, "read"),
        ("list", "list a node's workflows, newest first", workflows.ListWorkflows, workflows.WorkflowList, "read"),
        ("abort", "end a workflow, clean-up included", workflows.AbortWorkflow, workflows.WorkflowView, "manage"),
        ("retry", "run a failed workflow again", workflows.RetryWorkflow, workflows.WorkflowView, "manage"),
        ("pause", "start no more steps of a workflow", workflows.PauseWorkflow, workflows.WorkflowView, "manage"),
        ("resume", "go on with a paused workflow", workflows.ResumeWorkflow, workflows.WorkflowView, "manage"),
    ):
        yield row(f"workflows.{method}", summary, request, response, rights, "nodeId", resource="compute-node")

    yield row(
        "doctor.findings",
        "list what an operator should look at",
        doctor.FindingsRequest,
        doctor.Findings,
        "read",
        spans=True,
    )

    yield row(
        "events.list", "list the events, oldest first", history.ListEvents, history.EventList, "read", spans=True
    )
    yield row(
        "audit.list", "list the audit trail, newest first", history.ListAudit, history.AuditList, "read", spans=True
    )


def kebab(name: str) -> str:
    """`joinTokens` as `join-tokens`."""
    return "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in name)


VERBS: Mapping[str, Verb] = {verb.id: verb for verb in _rows()}
"""By `<group>.<method>`."""
