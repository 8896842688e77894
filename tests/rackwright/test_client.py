"""The API's client, against a control plane that really runs."""

import hashlib
import http.client
import http.server
import socket
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any, cast

import pytest

from control_plane.api.verbs import VERBS
from control_plane.authority import Authority
from protocol.errors import RequestCode, RequestError
from rackwright.client import Client, _date_of
from rackwright.console_link import ConsoleLink
from tests.control_plane.running import AnsweringAgent, RunningControlPlane


def test_every_verb_is_a_method_with_its_summary() -> None:
    client = Client("https://control.example", "rwt_x")
    assert client.join_tokens.create.__doc__ == VERBS["joinTokens.create"].summary
    assert client.nodes.list.__doc__ == "list the machines"
    with pytest.raises(AttributeError, match="no group 'things'"):
        client.things  # noqa: B018
    with pytest.raises(AttributeError, match="no method 'paint'"):
        client.nodes.paint  # noqa: B018


def test_a_verb_takes_python_names_and_gives_a_typed_answer(client: Client) -> None:
    client.sites.create(name="lab")
    node = client.nodes.create(name="n1", site_id="lab", bmc={"address": "https://192.0.2.1"})
    assert (node.name, node.bmc.driver) == ("n1", "redfish")
    assert client.nodes.get(node_id="n1") == node
    assert node.created_at.tzinfo is not None


def test_an_operation_is_done_and_its_result_comes_back(client: Client, agent: AnsweringAgent) -> None:
    command = client.drivers.invoke(node_id="n1", operation="power.getPower")
    assert (command.state, command.result) == ("succeeded", {"state": "on", "raw": "On"})
    assert [asked.payload["operation"] for asked in agent.asked] == ["getPower"]


def test_a_refusal_is_a_request_error_with_its_faults(client: Client) -> None:
    with pytest.raises(RequestError) as caught:
        client.nodes.create(nam="x")
    assert caught.value.code is RequestCode.INVALID_INPUT
    assert {issue.path for issue in caught.value.issues} == {"nam", "name", "siteId", "bmc"}
    with pytest.raises(RequestError) as caught:
        client.call("nodes", "get", {"nodeId": "nowhere"})
    assert caught.value.code is RequestCode.NOT_FOUND


def test_the_connection_is_kept_and_made_anew_when_the_server_has_closed_it(client: Client) -> None:
    client.nodes.list()
    first = client._connection
    client.nodes.list()
    assert client._connection is first
    assert first is not None
    first.sock.shutdown(socket.SHUT_RDWR)
    assert client.nodes.list().items == []


def test_events_are_followed_as_they_happen(client: Client) -> None:
    events = client.follow_events(after=0)
    client.sites.create(name="lab")
    client.nodes.create(name="n1", site_id="lab", bmc={"address": "simulated://n1"})
    client.nodes.delete(node_id="n1")
    assert [event["type"] for event in islice(events, 2)] == ["node.created", "node.deleted"]


def test_nothing_is_sent_to_a_server_that_cannot_be_reached_and_it_says_so() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    with pytest.raises(RequestError, match=f"127.0.0.1:{port} cannot be reached") as caught:
        Client(f"http://127.0.0.1:{port}", "rwt_x").call("nodes", "list")
    assert caught.value.code is RequestCode.UNAVAILABLE


@pytest.mark.parametrize("url", ["ftp://x", "https://", "https://user:pw@x", "https://x:99999", "https://x?a=b"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(RequestError, match=r"is no control plane: write https://host"):
        Client(url, "rwt_x")


def test_a_token_goes_over_plain_http_only_to_this_host_or_with_consent() -> None:
    with pytest.raises(RequestError, match="shows the token"):
        Client("http://control.example", "rwt_x")
    assert Client("http://control.example", "rwt_x", allow_http=True)
    assert Client("http://localhost:8440", "rwt_x")


def test_a_token_is_not_shown() -> None:
    assert "hunter2" not in repr(Client("https://control.example", "hunter2"))


@pytest.fixture
def tls_plane(tmp_path: Path) -> Iterator[tuple[RunningControlPlane, Path, str]]:
    """A control plane with TLS, the CA's file, and the SHA-256 of its certificate."""
    folder = tmp_path / "tls"
    authority = Authority.open(folder)
    authority.server_context(["127.0.0.1"])
    certificate, key = folder / "server.pem", folder / "server.key"
    der = ssl.PEM_cert_to_DER_cert(certificate.read_text())
    with RunningControlPlane(tmp_path / "state", tls_certificate=str(certificate), tls_key=str(key)) as plane:
        yield plane, folder / "ca.pem", hashlib.sha256(der).hexdigest()


async def test_a_console_shows_its_token_to_the_right_server_only(
    tls_plane: tuple[RunningControlPlane, Path, str],
) -> None:
    plane, ca_file, fingerprint = tls_plane
    token = plane.token()
    trusted: list[dict[str, Any]] = [{"ca_file": str(ca_file)}, {"pin": fingerprint}]
    for trust in trusted:
        with Client(plane.url, token, **trust) as client, pytest.raises(RequestError) as caught:
            async with ConsoleLink(client, "no-such-node", {}):
                pass
        # It was let in, so the token was shown: the machine alone is missing.
        assert caught.value.code is RequestCode.NOT_FOUND
    distrusted: list[tuple[dict[str, Any], str]] = [
        ({"pin": "0" * 64}, "another certificate"),
        ({}, "is not trusted"),
    ]
    for distrust, words in distrusted:
        with Client(plane.url, token, **distrust) as client, pytest.raises(RequestError, match=words) as caught:
            async with ConsoleLink(client, "n1", {}):
                pass
        assert caught.value.code is RequestCode.UNAVAILABLE
        assert token not in str(caught.value)


def test_a_server_is_trusted_by_its_ca_or_by_its_pin_and_not_else(
    tls_plane: tuple[RunningControlPlane, Path, str],
) -> None:
    plane, ca_file, fingerprint = tls_plane
    token = plane.token()
    with Client(plane.url, token, ca_file=str(ca_file)) as by_ca:
        assert by_ca.nodes.list().items == []
    with Client(plane.url, token, pin=f"sha256:{fingerprint}") as by_pin:
        assert by_pin.nodes.list().items == []
    with pytest.raises(RequestError, match="is not trusted"):
        Client(plane.url, token).nodes.list()
    with pytest.raises(RequestError, match=f"shows another certificate .sha256:{fingerprint}"):
        Client(plane.url, token, pin="0" * 64).nodes.list()


class _Proxy(http.server.BaseHTTPRequestHandler):
    """Counts requests, and drops or garbles its answers."""

    requests: list[str] = []
    answers: list[bytes | None] = []

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.requests.append(self.path)
        answer = self.answers.pop(0)
        if answer is None:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.send_response(200 if answer.startswith(b"{") else 502)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        return None


@pytest.fixture
def proxy() -> Iterator[tuple[type[_Proxy], Client]]:
    handler = type("Handler", (_Proxy,), {"requests": [], "answers": [], "protocol_version": "HTTP/1.1"})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    with Client(f"http://127.0.0.1:{server.server_port}", "rwt_x") as client:
        yield handler, client
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_read_whose_answer_was_lost_is_sent_again(proxy: tuple[type[_Proxy], Client]) -> None:
    handler, client = proxy
    handler.answers += [b"{}", None, b'{"items":[]}']
    client.call("nodes", "list")
    assert client.call("nodes", "list") == {"items": []}
    assert len(handler.requests) == 3


def test_a_change_whose_answer_was_lost_is_not_sent_again(proxy: tuple[type[_Proxy], Client]) -> None:
    handler, client = proxy
    handler.answers += [b"{}", None, b"{}"]
    client.call("nodes", "list")
    with pytest.raises(RequestError, match="it may have been done: look before you repeat it"):
        client.call("sites", "create", {"name": "lab"})
    assert len(handler.requests) == 2


def test_an_invocation_has_a_key_so_that_it_can_be_sent_again(proxy: tuple[type[_Proxy], Client]) -> None:
    handler, client = proxy
    handler.answers += [b"{}", None, b'{"state":"succeeded"}']
    client.call("nodes", "list")
    assert client.call("drivers", "invoke", {"nodeId": "n1", "operation": "power.getPower"})["state"] == "succeeded"
    assert len(handler.requests) == 3


def test_an_answer_that_is_no_control_planes_says_so(proxy: tuple[type[_Proxy], Client]) -> None:
    handler, client = proxy
    handler.answers += [b"<html>Bad gateway</html>"]
    with pytest.raises(RequestError, match=r"the answer \(HTTP 502\) is not a control plane's"):
        client.call("nodes", "list")


def test_a_follower_of_events_comes_back_after_the_control_plane_was_away(tmp_path: Path) -> None:
    with RunningControlPlane(tmp_path / "state") as first:
        token = first.token()
        port = first.plane.api_port
        with Client(first.url, token) as client:
            client.sites.create(name="lab")
            client.nodes.create(name="n1", site_id="lab", bmc={"address": "simulated://n1"})
            events = client.follow_events(after=0)
            assert next(events)["type"] == "node.created"
    again = RunningControlPlane(tmp_path / "state", listen=f"127.0.0.1:{port}")
    with again, Client(again.url, token) as client:
        client.nodes.delete(node_id="n1")
        assert next(events)["type"] == "node.deleted"
        events.close()  # type: ignore[attr-defined]


def test_the_time_is_the_control_plane_s_and_not_this_host_s(
    proxy: tuple[type[_Proxy], Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    handler, client = proxy
    handler.answers.append(b"{}")
    there = datetime(2031, 2, 3, 4, 5, 6, tzinfo=UTC)
    monkeypatch.setattr("rackwright.client._date_of", lambda response: there)
    client.call("nodes", "list")
    assert timedelta(0) <= client.now() - there < timedelta(minutes=5)


@pytest.mark.parametrize("date", ["", "yesterday"])
def test_an_answer_without_a_usable_date_leaves_this_host_s_time(date: str) -> None:
    class Answer:
        def getheader(self, name: str, default: str) -> str:
            return date

    told = _date_of(cast("http.client.HTTPResponse", Answer()))
    assert abs(told - datetime.now(UTC)) < timedelta(minutes=5)
