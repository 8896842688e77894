"""The words both sides speak: ids, errors, durations, addresses, operations, commands and frames.

No input or output happens here, and nothing else of this repository is imported.
"""

__all__ = ["VERSION"]

VERSION = "0.1.0"
