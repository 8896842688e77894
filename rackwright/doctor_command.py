"""`rackwright doctor`: what an operator should look at."""

import json

import click

from protocol.presentation import printable
from rackwright.login import connect

__all__ = ["doctor"]


@click.command()
@click.option("--tenant", help="Whose; of every tenant where the token is good for all and this is left out.")
@click.option("--json", "as_json", is_flag=True, help="The whole answer, as JSON.")
def doctor(tenant: str | None, as_json: bool) -> None:
    """List what is wrong, the gravest first, each with what to do.

    Exit code 1 when something is of the severity warning or worse.
    """
    with connect(tenant) as client:
        answer = client.call("doctor", "findings")
    findings = answer["items"]
    if as_json:
        click.echo(json.dumps(answer, indent=2, ensure_ascii=False))
    else:
        for finding in findings:
            click.echo(
                f"{finding['severity']:<7}  {finding['id']}  {finding['subject']}: {printable(finding['message'])}"
            )
            click.echo(f"         {printable(finding['hint'])}")
        if answer["more"]:
            click.echo("there are more of some kind than are shown here", err=True)
        if not findings:
            click.echo("nothing to report")
    if any(finding["severity"] != "info" for finding in findings):
        click.get_current_context().exit(1)
