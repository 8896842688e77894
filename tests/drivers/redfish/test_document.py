"""Documents that keep to no schema are read without a fault."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivers.redfish.document import (
    action,
    allowed_values,
    boolean,
    link,
    links,
    members,
    number,
    path_of,
    same_path,
    text,
)


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("/redfish/v1/Systems/1", "/redfish/v1/Systems/1"),
        ("https://192.0.2.1/redfish/v1/x?y=1", "/redfish/v1/x?y=1"),
        ("redfish/v1/x", "/redfish/v1/x"),
        ("/redfish/v1/x#/Boot", "/redfish/v1/x"),
        ("/redfish/v1/Boot0019: Ubuntu", "/redfish/v1/Boot0019:%20Ubuntu"),
        ("/redfish/v1/Ä", "/redfish/v1/%C3%84"),
        ("/redfish/v1/x\r\nHost: evil", "/redfish/v1/x%0D%0AHost:%20evil"),
        ("//evil.example/x", "//evil.example/x"),
    ],
)
def test_a_link_leads_to_a_path_of_this_bmc(uri: str, path: str) -> None:
    assert path_of(uri) == path


@pytest.mark.case("B37")
@pytest.mark.parametrize(
    ("collection", "paths"),
    [
        ({"Members": [{"@odata.id": "/a"}, {"@odata.id": "/b"}]}, ["/a", "/b"]),
        ({"Members": None, "Members@odata.count": 3}, []),
        ({"Members@odata.count": 2}, []),
        ({"Members": [{"@odata.id": "/a"}, {"@odata.id": "/a"}, {}, None, "/c"]}, ["/a", "/c"]),
        ({"Members": {"@odata.id": "/a"}}, ["/a"]),
        ({"Members": [{"href": "/old"}]}, ["/old"]),
        (None, []),
        ([], []),
    ],
)
def test_members_are_read_whatever_the_count_says(collection: object, paths: list[str]) -> None:
    assert members(collection) == paths


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda x: (
            st.lists(x)
            | st.dictionaries(st.sampled_from(["a", "@odata.id", "Members", "Actions", "target", "#x"]), x)
        ),
    )
)
def test_no_json_breaks_a_reader(value: object) -> None:
    text(value, "a")
    number(value, "a")
    boolean(value, "a")
    link(value, "a")
    links(value, "Members")
    members(value)
    action(value, "x")
    allowed_values(value, "a")


def test_values_of_another_type_are_read_where_they_make_sense() -> None:
    assert text({"SerialNumber": 17}, "SerialNumber") == "17"
    assert text({"SerialNumber": "   "}, "SerialNumber") is None
    assert number({"Reading": "21.5"}, "Reading") == 21.5
    assert number({"Reading": "N/A"}, "Reading") is None
    assert boolean({"Inserted": "true"}, "Inserted") is None
    assert same_path("/redfish/v1/systems/1/", "/redfish/v1/Systems/1")
