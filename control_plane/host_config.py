"""A profile's `hostConfig` for one node: what stands in braces is filled in. Pure."""

from collections.abc import Mapping

__all__ = ["filled"]


def filled(config: Mapping[str, object], *, node_id: str, node_name: str) -> dict[str, object]:
    """With `{node.name}` and `{node.id}` replaced in every text; anything else in braces stays as it is."""
    words = {"{node.name}": node_name, "{node.id}": node_id}
    return {key: _filled(value, words) for key, value in config.items()}


def _filled(value: object, words: Mapping[str, str]) -> object:
    if isinstance(value, str):
        for word, meant in words.items():
            value = value.replace(word, meant)
        return value
    if isinstance(value, list):
        return [_filled(item, words) for item in value]
    if isinstance(value, Mapping):
        return {key: _filled(item, words) for key, item in value.items()}
    return value
