"""What each RAID level needs and gives: the fewest drives, the groups of the spanned levels, the capacity. Pure."""

from protocol.shapes.raid import RaidLevel

__all__ = ["capacity", "layout_fault", "least_capacity", "spans_of"]

_FEWEST = {
    RaidLevel.RAID0: 1,
    RaidLevel.RAID1: 2,
    RaidLevel.RAID5: 3,
    RaidLevel.RAID6: 4,
    RaidLevel.RAID10: 4,
    RaidLevel.RAID50: 6,
    RaidLevel.RAID60: 8,
    RaidLevel.JBOD: 1,
}
_FEWEST_IN_SPAN = {RaidLevel.RAID10: 2, RaidLevel.RAID50: 3, RaidLevel.RAID60: 4}
_LOST_IN_SPAN = {RaidLevel.RAID50: 1, RaidLevel.RAID60: 2}


def layout_fault(level: RaidLevel, drives: int, spans: int | None = None) -> str | None:
    """Why a volume of this level cannot be made of so many drives; None where it can."""
    fewest = _FEWEST[level]
    if drives < fewest:
        return f"{level} needs at least {fewest} drives, and {drives} are given"
    if level is RaidLevel.RAID1 and drives > 2:
        return f"RAID1 takes 2 drives, and {drives} are given: RAID10 takes 4 and more"
    if level not in _FEWEST_IN_SPAN:
        return f"{level} has no spans: leave spans out" if spans is not None else None
    possible = _possible_spans(level, drives)
    if not possible:
        return f"{level} cannot be made of {drives} drives: its groups must have one size"
    if spans is not None and spans not in possible:
        listed = " or ".join(str(number) for number in possible)
        return f"{level} of {drives} drives can have {listed} spans, not {spans}"
    return None


def spans_of(level: RaidLevel, drives: int, spans: int | None = None) -> int:
    """The groups of a volume: as asked, else the fewest that are possible; 1 for a level without spans."""
    if spans is not None:
        return spans
    if level is RaidLevel.RAID10:
        return drives // 2
    return next(iter(_possible_spans(level, drives)), 1)


def capacity(level: RaidLevel, drives: int, smallest: int, spans: int | None = None) -> int:
    """Bytes that a volume of this level offers, before what the controller keeps for itself.

    `smallest`: the size of its smallest drive in bytes.
    """
    match level:
        case RaidLevel.RAID1:
            return smallest
        case RaidLevel.RAID10:
            return drives // 2 * smallest
        case RaidLevel.RAID5:
            return (drives - 1) * smallest
        case RaidLevel.RAID6:
            return (drives - 2) * smallest
        case RaidLevel.RAID50 | RaidLevel.RAID60:
            return (drives - _LOST_IN_SPAN[level] * spans_of(level, drives, spans)) * smallest
        case _:
            return drives * smallest


def least_capacity(level: RaidLevel, drives: int, smallest: int) -> int:
    """The same with the spans that give the least: what a whole array has at least, whoever chose its spans."""
    possible = _possible_spans(level, drives)
    return capacity(level, drives, smallest, possible[-1] if possible else None)


def _possible_spans(level: RaidLevel, drives: int) -> list[int]:
    fewest = _FEWEST_IN_SPAN.get(level)
    if fewest is None:
        return []
    return [
        spans for spans in range(2, drives // fewest + 1) if drives % spans == 0 and _even(level, drives // spans)
    ]


def _even(level: RaidLevel, in_span: int) -> bool:
    return level is not RaidLevel.RAID10 or in_span % 2 == 0
