"""Joining: the token's secret goes to the control plane that made it and to nobody else; every refusal says why."""

import stat
from pathlib import Path

import pytest

from agent.errors import IdentityError, JoinFailed
from agent.identity import IdentityStore
from agent.joining import join
from tests.agent.tls_control_plane import control_plane


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
    assert not store.unfinished_join()


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


async def test_after_a_crash_in_the_middle_joining_again_says_that_a_new_token_is_needed(
    tmp_path: Path, store: IdentityStore
) -> None:
    async with control_plane(tmp_path) as plane:
        token = plane.token()
        await join(plane.url, token, store)
        # The crash: the key is on the disk, the control plane has spent the token, no identity is linked.
        (store.folder / "current").unlink()
        assert store.unfinished_join()
        with pytest.raises(JoinFailed, match=r"cut off.*make a new one"):
            await join(plane.url, token, store)
        await join(plane.url, plane.token(), store)
    assert [path.name for path in store.folder.glob("gen-*")] == [
        path.name
        for path in [store.current().folder]  # type: ignore[union-attr]
    ]
