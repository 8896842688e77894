"""Joining: the token's secret goes to the control plane that made it and to nobody else; every refusal says why."""

import stat
from pathlib import Path

import pytest

from agent.errors import IdentityError, JoinFailed
from agent.identity import IdentityStore
from agent.joining import join
from tests.agent.tls_control_plane import control_plane, public_key


@pytest.fixture
def store(folder: Path) -> IdentityStore:
    return IdentityStore(folder / "identity")


async def test_a_join_leaves_a_whole_identity_whose_key_only_its_owner_can_read(
    tmp_path: Path, store: IdentityStore
) -> None:
    async with control_plane(tmp_path) as plane:
        identity = await join(plane.url, plane.token(), store)
    assert store.current() == identity
    assert identity.facts.role == "site"
    assert identity.facts.site == "site-1"
    assert identity.facts.control_plane == plane.url
    assert stat.S_IMODE((identity.folder / "agent.key").stat().st_mode) == 0o600
    assert "PRIVATE KEY" not in plane.joins[0].csr
    assert identity.validity.trouble(identity.validity.begins + 1) is None


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "https://127.0.0.1:{}", "wss://127.0.0.1:{}"])
async def test_the_address_may_be_written_in_every_verified_form(
    form: str, tmp_path: Path, store: IdentityStore
) -> None:
    async with control_plane(tmp_path) as plane:
        identity = await join(form.format(plane.port), plane.token(), store)
    assert identity.facts.control_plane == plane.url


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://127.0.0.1", "in clear"),
        ("ftp://127.0.0.1", "no form"),
        ("https://a:b@127.0.0.1", "no user or password"),
        ("https://127.0.0.1/agent", "no path"),
        ("https://127.0.0.1:0", "no usable host"),
        ("https://127.0.0.1:99999", "1 to 65535"),
        ("", "no usable host"),
    ],
)
async def test_an_unusable_address_is_refused_with_the_forms_that_work(
    url: str, said: str, store: IdentityStore, tmp_path: Path
) -> None:
    async with control_plane(tmp_path) as plane:
        with pytest.raises(JoinFailed, match=said) as failure:
            await join(url, plane.token(), store)
    assert "https://host[:8443]" in str(failure.value)


async def test_another_control_plane_is_refused_and_never_sees_the_token(
    tmp_path: Path, store: IdentityStore
) -> None:
    async with control_plane(tmp_path) as plane:
        with pytest.raises(JoinFailed, match=r"in between\. The token was not sent"):
            await join(plane.url, plane.token(sha256="ab" * 32), store)
        assert plane.joins == []
    assert store.current() is None


async def test_a_server_certificate_for_another_host_never_sees_the_token(
    tmp_path: Path, store: IdentityStore
) -> None:
    async with control_plane(tmp_path, host_in_certificate="127.0.0.9") as plane:
        with pytest.raises(JoinFailed, match=r"does not hold.*The token was not sent"):
            await join(plane.url, plane.token(), store)
        assert plane.joins == []


@pytest.mark.parametrize("reason", ["this token was used already", "this token expired", "there is no such token"])
async def test_the_control_planes_own_words_tell_why_a_token_is_refused(
    reason: str, tmp_path: Path, store: IdentityStore
) -> None:
    async with control_plane(tmp_path) as plane:
        with pytest.raises(JoinFailed, match=reason):
            await join(plane.url, plane.token(refused=reason), store)
    assert store.current() is None
    assert store.unfinished_join(plane.joins[0].token_id) is None


@pytest.mark.parametrize("token", ["", "rwj1", "rwj1.x.y.z", "hello", "rwj1." + "a" * 64 + ".jtk_1.short"])
async def test_a_damaged_token_is_refused_without_being_repeated(token: str, store: IdentityStore) -> None:
    with pytest.raises(JoinFailed, match="join token") as failure:
        await join("https://127.0.0.1:1", token, store)
    assert "short" not in str(failure.value)


async def test_nobody_at_the_address_is_told_with_what_to_check(store: IdentityStore, unused_tcp_port: int) -> None:
    from protocol.join_token import JoinToken

    with pytest.raises(JoinFailed, match=r"cannot be reached.*check the address"):
        await join(f"https://127.0.0.1:{unused_tcp_port}", JoinToken.new("ab" * 32).text(), store)


async def test_an_identity_is_replaced_by_force_only(tmp_path: Path, store: IdentityStore) -> None:
    async with control_plane(tmp_path) as plane:
        first = await join(plane.url, plane.token(), store)
        with pytest.raises(IdentityError, match="--force"):
            await join(plane.url, plane.token(), store)
        with pytest.raises(JoinFailed):
            await join(plane.url, plane.token(refused="expired"), store, force=True)
        assert store.current() == first
        second = await join(plane.url, plane.token(), store, force=True)
    assert store.current() == second
    assert not first.folder.exists()


async def test_a_join_whose_answer_was_lost_is_asked_again_with_the_same_key(
    tmp_path: Path, store: IdentityStore
) -> None:
    async with control_plane(tmp_path, lost_answers=2) as plane:
        token = plane.token()
        for _ in range(2):
            with pytest.raises(
                JoinFailed, match=r"broke before it answered.*the same command.*until the token expires"
            ):
                await join(plane.url, token, store)
        assert store.current() is None
        identity = await join(plane.url, token, store)
    assert len({public_key(request.csr) for request in plane.joins}) == 1
    assert identity.facts.agent_id == plane.joined[plane.joins[0].token_id][1].agent_id
    assert store.current() == identity


async def test_after_a_crash_before_the_identity_was_whole_the_same_token_still_joins(
    tmp_path: Path, store: IdentityStore
) -> None:
    async with control_plane(tmp_path, lost_answers=1) as plane:
        token = plane.token()
        with pytest.raises(JoinFailed):
            await join(plane.url, token, store)
        kept = store.unfinished_join(plane.joins[0].token_id)
        assert kept is not None
        assert stat.S_IMODE((kept / "agent.key").stat().st_mode) == 0o600
        (kept / "agent.crt").write_text("half a certifi")
        identity = await join(plane.url, token, IdentityStore(store.folder))
    assert identity.folder == kept
    assert [path for path in store.folder.iterdir() if path.name.startswith("gen-")] == [kept]


async def test_the_key_of_an_unanswered_join_outlives_the_start_of_the_agent_that_has_an_identity(
    tmp_path: Path, store: IdentityStore
) -> None:
    async with control_plane(tmp_path) as plane:
        first, token = await join(plane.url, plane.token(), store), plane.token()
        plane.lost_answers = 1
        with pytest.raises(JoinFailed, match="broke before"):
            await join(plane.url, token, store, force=True)
        store.tidy()
        assert store.current() == first
        second = await join(plane.url, token, store, force=True)
    assert store.current() == second
    assert not first.folder.exists()


async def test_a_busy_control_plane_and_another_token_leave_the_key_of_an_unanswered_join(
    tmp_path: Path, store: IdentityStore
) -> None:
    async with control_plane(tmp_path, lost_answers=1) as plane:
        token = plane.token()
        with pytest.raises(JoinFailed, match="broke before"):
            await join(plane.url, token, store)
        with pytest.raises(JoinFailed, match="mistyped"):
            await join(plane.url, plane.token(refused="mistyped"), store)
        taken = plane.joined.pop(plane.joins[0].token_id)
        plane.refusal_code = "BUSY"
        with pytest.raises(JoinFailed) as busy:
            await join(plane.url, token, store)
        assert busy.value.refusal == "BUSY"
        plane.joined[plane.joins[0].token_id] = taken
        await join(plane.url, token, store)
    assert public_key(plane.joins[-1].csr) == public_key(plane.joins[0].csr)
    assert public_key(plane.joins[1].csr) != public_key(plane.joins[0].csr), "each token has a key of its own"


async def test_a_key_that_is_damaged_on_the_disk_does_not_keep_the_agent_from_joining(
    tmp_path: Path, store: IdentityStore
) -> None:
    async with control_plane(tmp_path, lost_answers=1) as plane:
        token = plane.token()
        with pytest.raises(JoinFailed, match="broke before"):
            await join(plane.url, token, store)
        kept = store.unfinished_join(plane.joins[0].token_id)
        assert kept is not None
        (kept / "agent.key").write_bytes(bytes(64))
        with pytest.raises(JoinFailed, match="used already"):
            await join(plane.url, token, store)
        await join(plane.url, plane.token(), store)
