"""What machines start from, over HTTP: their own boot medium, files for iPXE, images of operating systems.

    /<token>/<any name>.iso                   the ramdisk's image with the machine's ticket, for its BMC or firmware
    /<token>/vmlinuz, initrd, ticket.cpio     the same for iPXE
    /ipxe/<MAC or UUID>                       the iPXE script of a machine that is to start; any other goes on
    /images/<token>/<checksum>/<name>         an image, out of the site's cache
    /loaders/<name>                           a boot loader, for everybody

There is no query anywhere (Supermicro's X12 refuses one), and the ISO ends in .iso (many BMCs and all UEFI firmware
look at that). The log names machines and files, never a path.
"""

import os
import re
import ssl
import stat
import time
from pathlib import Path

import structlog
from aiohttp import web

from agent.boot_image import BootImages
from agent.boot_paths import ImagePath, PathKind, Paths
from agent.byte_serving import FileContent, serve
from agent.clock import Clock
from agent.config import BootSection, Config
from agent.file_server import safe_name
from agent.http_listener import HttpListener
from agent.image_cache import ImageCache
from agent.image_logins import ImageLogins
from agent.machine_media import MachineMedia
from agent.tickets import Tickets
from drivers.image_access import ImageAccess
from protocol.errors import ErrorCode, OperationError
from protocol.image_admission import ADMISSION

__all__ = ["BootServer", "site_boot_server"]

_log = structlog.get_logger("agent.boot_server")
_LOADER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,100}")
_RETRY_AFTER = {"Retry-After": "5"}


class BootServer:
    """`media`: the machines' side of it. `images`: None where the site starts no machines."""

    def __init__(
        self,
        config: BootSection,
        paths: Paths,
        cache: ImageCache,
        tickets: Tickets,
        images: BootImages | None = None,
    ) -> None:
        self.media = MachineMedia(images, paths, tickets, config.control_plane)
        self._config = config
        self._paths = paths
        self._cache = cache
        self._images = images
        self._listener = HttpListener(
            config.listen, self._answer, setting="boot", tls=self._tls if config.tls_certificate else None
        )

    async def start(self) -> None:
        """Listens. Raises OperationError CONFLICT where it cannot, or is not to."""
        if not self._config.listen:
            raise OperationError(
                ErrorCode.CONFLICT, "this site has no boot server: set boot.listen in agent.toml, such as :8446"
            )
        if not self._listener.is_up:
            await self._listener.start()
            _log.info("boot_server_started", listen=self._config.listen)

    async def start_for_machines(self) -> None:
        """At the agent's start: listens where machines may come by themselves. A failure is told, and it is tried
        again with the first offer."""
        if self._config.listen and (self._images is not None or not self._paths.is_empty):
            try:
                await self.start()
            except OperationError as error:
                _log.error("boot_server_not_started", reason=error.message)

    async def offer_medium(self, node_id: str, kind: PathKind, *, reached_by: str = "", once: bool = False) -> str:
        """The address of the machine's own ISO, for the host `reached_by`; `once` and what is raised as
        `MachineMedia.medium` has it."""
        await self.start()
        base = await self._base(reached_by)
        return f"{base}/{await self.media.medium(node_id, kind, once=once)}"

    async def arm_ipxe(self, node_id: str) -> None:
        """The machine's next request for a script starts its ramdisk. Raises OperationError."""
        await self.start()
        await self.media.arm(node_id)

    async def offer_image(self, node_id: str, digest: str, name: str, origin: str, *, token: str) -> str:
        """The address under which the machine fetches the image (`digest`: `sha256-…` or `sha512-…`). `token`: what
        admits to it, of 160 bits in hexadecimal.

        It is fetched from its origin now where it is not here: the call returns once that has begun well. Raises
        OperationError.
        """
        await self.start()
        size = await self._cache.prefetch(digest, origin)
        try:
            path = await self._paths.make_image(node_id, digest, safe_name(name), origin, token)
        except OSError as error:
            raise OperationError(
                ErrorCode.CONFLICT, f"the image's path cannot be kept: {error.strerror}; free space"
            ) from error
        _log.info("image_offered", node=node_id, name=path.name, bytes=size)
        return f"{await self._machines_base()}{_image_path(path)}"

    async def aclose(self) -> None:
        """Ends the transfers too. The paths are good again after the next start."""
        await self._cache.aclose()
        await self._listener.stop()
        if self._images is not None:
            self._images.close()

    async def _base(self, reached_by: str) -> str:
        return self._config.url.rstrip("/") or await self._listener.address(reached_by)

    async def _machines_base(self) -> str:
        return self._config.machines_url.rstrip("/") or await self._base("")

    def _tls(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._config.tls_certificate, self._config.tls_key)
        return context

    # One request

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        began = time.monotonic()
        facts: dict[str, object] = {"what": "unknown"}
        response: web.StreamResponse | None = None
        try:
            response = await self._route(request, facts)
            return response
        finally:
            _log.info(
                "boot_fetched",
                by=request.remote,
                method=request.method,
                status=0 if response is None else response.status,
                bytes=0 if response is None else response.content_length,
                seconds=round(time.monotonic() - began, 3),
                **facts,
            )

    async def _route(self, request: web.BaseRequest, facts: dict[str, object]) -> web.StreamResponse:
        if request.method not in ("GET", "HEAD"):
            return web.Response(status=405, headers={"Allow": "GET, HEAD"})
        match request.path.strip("/").split("/"):
            case ["ipxe", asker]:
                facts["what"] = "ipxe"
                facts["node"], script = await self.media.script(asker)
                return web.Response(text=script, content_type="text/plain", headers={"Cache-Control": "no-store"})
            case ["images", token, checksum, name]:
                return await self._image(request, token, checksum, name, facts)
            case ["loaders", name]:
                facts |= {"what": "loader", "name": name}
                return await self._loader(request, name)
            case [token, name]:
                return await self._medium(request, token, name, facts)
        return web.Response(status=404)

    async def _medium(
        self, request: web.BaseRequest, token: str, name: str, facts: dict[str, object]
    ) -> web.StreamResponse:
        try:
            found = await self.media.content(token, name)
        except OperationError as error:
            _log.error("medium_not_served", reason=error.message)
            return web.Response(status=503, headers=_RETRY_AFTER)
        if found is None:
            return web.Response(status=404)
        facts["node"], content = found
        facts["what"] = "iso" if name.endswith(".iso") else name
        return await serve(request, content)

    async def _loader(self, request: web.BaseRequest, name: str) -> web.StreamResponse:
        if not self._config.loaders_dir or not _LOADER.fullmatch(name):
            return web.Response(status=404)
        try:
            handle = os.open(Path(self._config.loaders_dir) / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return web.Response(status=404)
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                return web.Response(status=404)
            return await serve(request, FileContent(handle, status.st_size, status.st_mtime))
        finally:
            os.close(handle)

    async def _image(
        self, request: web.BaseRequest, token: str, checksum: str, name: str, facts: dict[str, object]
    ) -> web.StreamResponse:
        if token == ADMISSION:
            # A ramdisk of before asks for the word itself.
            return web.Response(status=409, text="this ramdisk is older than the site's agent: build it anew\n")
        path = self._paths.image(token)
        if path is None or (checksum, name) != (path.digest.partition("-")[2], path.name):
            return web.Response(status=404)
        facts |= {"what": "image", "node": path.node_id, "name": path.name}
        try:
            async with self._cache.open(path.digest, path.origin) as image:
                return await serve(request, image)
        except OperationError as error:
            _log.error("image_not_served", name=path.name, reason=error.message)
            if error.code in (ErrorCode.CONFLICT, ErrorCode.INVALID_ARGUMENT):
                # Asked again it is the same: whoever wants it is to fail at once, and with the cause.
                return web.Response(status=409, text=f"{error.message}\n")
            return web.Response(status=502, text=f"{error.message}\n", headers=_RETRY_AFTER)


def site_boot_server(config: Config, clock: Clock, tickets: Tickets, logins: ImageLogins | None = None) -> BootServer:
    """With what lies in the state folder. `logins`: those that images are fetched with."""
    boot = config.boot
    paths = Paths(config.state / "boot-paths.json", clock, boot.path_hours * 3600)
    access = ImageAccess(config.images.allow)
    cache = ImageCache(config.image_cache_dir, boot.cache_bytes, access, logins=logins)
    return BootServer(boot, paths, cache, tickets, BootImages(Path(boot.image)) if boot.image else None)


def _image_path(path: ImagePath) -> str:
    return f"/images/{path.token}/{path.digest.partition('-')[2]}/{path.name}"
