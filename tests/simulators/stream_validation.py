"""DMTF's protocol validator with its tests of server-sent events. Run by the Python of `.peers`, as the validator is.

The released validator leaves its look-up of the stream out: its reader takes a stream that is silent for a while for
a broken one. Here it is told the stream's address; whoever runs this keeps events coming.
"""

import sys
from collections.abc import Iterator
from typing import Any

from redfish_protocol_validator import console_scripts, resources, utils  # type: ignore[import-not-found]
from redfish_protocol_validator.constants import RequestType  # type: ignore[import-not-found]

without_stream = resources.get_default_resources


def with_stream(sut: Any, *arguments: Any, **named: Any) -> Iterator[dict[str, Any]]:
    """The resources that the validator reads, and the stream that the event service names."""
    yield from without_stream(sut, *arguments, **named)
    address = sut.get("/redfish/v1/EventService").json()["ServerSentEventUri"]
    sut.set_server_sent_event_uri(address)
    response, subscription = utils.get_sse_stream(sut)
    if subscription:
        sut.set_event_dest_uri(subscription)
    if response is not None:
        yield {"uri": address, "response": response, "request_type": RequestType.STREAMING}


resources.get_default_resources = with_stream
sys.exit(console_scripts.main())
