"""What is answered to a request for bytes, by its range and its conditions."""

import pytest

from agent.byte_serving import Plan, plan_answer

ETAG = '"v1"'
CHANGED = 1_700_000_000.5
DATE, EARLIER = "Tue, 14 Nov 2023 22:13:20 GMT", "Tue, 14 Nov 2023 22:13:19 GMT"
WHOLE, PART = Plan(200, 0, 100), Plan(206, 10, 20)
RANGE = {"Range": "bytes=10-19"}


@pytest.mark.parametrize(
    ("headers", "plan"),
    [
        ({}, WHOLE),
        (RANGE, PART),
        ({"Range": "bytes=90-"}, Plan(206, 90, 100)),
        ({"Range": "bytes=-5"}, Plan(206, 95, 100)),
        ({"Range": "bytes=0-"}, WHOLE),
        ({"Range": "bytes=100-"}, Plan(416)),
        ({"Range": "bytes=1-2,5-6"}, WHOLE),
        ({"Range": "lines=1-2"}, WHOLE),
        ({"Range": f"bytes={'9' * 5000}-"}, WHOLE),
        ({"If-Match": ETAG}, WHOLE),
        ({"If-Match": '"v0"'}, Plan(412)),
        ({"If-None-Match": '"v0", W/"v1"'}, Plan(304)),
        ({"If-None-Match": "*"}, Plan(304)),
        ({"If-None-Match": '"v0"', "If-Modified-Since": DATE}, WHOLE),
        ({"If-Modified-Since": DATE}, Plan(304)),
        ({"If-Modified-Since": EARLIER}, WHOLE),
        ({"If-Modified-Since": "yesterday"}, WHOLE),
        ({**RANGE, "If-Range": ETAG}, PART),
        ({**RANGE, "If-Range": DATE}, PART),
        ({**RANGE, "If-Range": '"v0"'}, WHOLE),
        ({**RANGE, "If-Range": EARLIER}, WHOLE),
    ],
)
def test_the_answer_follows_the_requests_range_and_conditions(headers: dict[str, str], plan: Plan) -> None:
    assert plan_answer(headers, 100, ETAG, CHANGED) == plan
