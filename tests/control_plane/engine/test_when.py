"""`when`: expressions over a node's labels."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.engine.when import WhenError, expression_faults, holds, parse

LABELS = {"nvswitch": "true", "gpu.model": "H100", "mig.capable": "false", "cpu": "Xeon Gold", "spare": "", "n": "0"}


@pytest.mark.line("A27")
@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("nvswitch", True),
        ("missing", False),
        ("mig.capable", False),
        ("spare", True),
        ("n", True),
        ("!nvswitch", False),
        ("!missing", True),
        ("!mig.capable", True),
        ("! missing", True),
        ("gpu.model=H100", True),
        ("gpu.model = H100", True),
        ("gpu.model=h100", False),
        ("missing=H100", False),
        ("mig.capable=false", True),
        ("cpu=Xeon Gold", True),
        ("gpu.model!=A100", True),
        ("gpu.model!=H100", False),
        ("missing!=H100", True),
        ("nvswitch && gpu.model=H100", True),
        ("nvswitch&&gpu.model=A100", False),
        ("  nvswitch\t&&\n!mig.capable  ", True),
        ("&& nvswitch &&", True),
        ("a/b-c_d", False),
    ],
)
def test_an_expression_holds_by_the_labels(expression: str, expected: bool) -> None:
    assert holds(expression, LABELS) is expected
    assert expression_faults(expression, "when") == []


@pytest.mark.line("A28")
@pytest.mark.parametrize("expression", ["", " ", "\t\n", "&&", " && && "])
def test_an_expression_without_a_term_is_false(expression: str) -> None:
    assert parse(expression) == []
    assert holds(expression, LABELS) is False


@pytest.mark.parametrize(
    ("expression", "hint"),
    [
        ("=x", "write key, !key"),
        ("a=b=c", "write key, !key"),
        ("a==b", "single ="),
        ("a=", "write key=value, or just the key"),
        ("a!=", "write key=value, or just the key"),
        ("a || b", "there is no ||"),
        ("(a && b)", "no parenthesis"),
        ("!!a", "write key, !key"),
        ("!a=b", "write key, !key"),
        ("a & b", "write key, !key"),
        ("a b", "write key, !key"),
        ('gpu.model="H100"', "without quotes"),
        ("a" * 64, "write key, !key"),
        (".a", "write key, !key"),
    ],
)
def test_a_malformed_term_makes_the_whole_false_and_is_named(expression: str, hint: str) -> None:
    assert holds(expression, LABELS) is False
    assert holds(f"nvswitch && {expression}", LABELS) is False
    issues = expression_faults(expression, "steps[0].when")
    assert {issue.path for issue in issues} == {"steps[0].when"}
    assert any(hint in issue.hint for issue in issues)
    with pytest.raises(WhenError, match="is no term"):
        parse(expression)


def test_every_malformed_term_is_reported() -> None:
    assert len(expression_faults("a || b && c && d=", "when")) == 2


KEYS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}", fullmatch=True)
VALUES = st.from_regex(r"[A-Za-z0-9_.:/+-]([A-Za-z0-9 _.:/+-]*[A-Za-z0-9_.:/+-])?", fullmatch=True)
TERMS = st.tuples(KEYS, st.sampled_from(["", "!", "=", "!="]), VALUES)
BLANKS = st.sampled_from(["", " ", "\t", "  "])


def written(term: tuple[str, str, str]) -> str:
    key, kind, value = term
    return {"": key, "!": f"!{key}"}.get(kind, f"{key}{kind}{value}")


def meant(term: tuple[str, str, str], labels: dict[str, str]) -> bool:
    key, kind, value = term
    present = labels.get(key, "false") != "false"
    return {"": present, "!": not present, "=": labels.get(key) == value, "!=": labels.get(key) != value}[kind]


@pytest.mark.line("A27")
@settings(deadline=None)
@given(st.lists(TERMS, min_size=1, max_size=5), st.dictionaries(KEYS, VALUES, max_size=5), BLANKS, st.data())
def test_terms_mean_what_they_say_however_they_are_spaced(
    terms: list[tuple[str, str, str]], labels: dict[str, str], blank: str, data: st.DataObject
) -> None:
    for key, _, value in terms:
        chosen = data.draw(st.sampled_from([None, "false", value]))
        if chosen is not None:
            labels[key] = chosen
    expression = f"{blank}&&{blank}".join(written(term) for term in terms)
    assert expression_faults(expression, "when") == []
    assert holds(expression, labels) is all(meant(term, labels) for term in terms)


@settings(deadline=None)
@given(st.text(max_size=60), st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3))
def test_no_text_makes_it_raise_and_a_faulty_one_is_false(expression: str, labels: dict[str, str]) -> None:
    result = holds(expression, labels)
    if expression_faults(expression, "when"):
        assert result is False
