"""The control plane: the ledger of commands, the agents' door, the operators' API, and the store beneath them.

It knows machines only by the operations of `protocol` and reaches them only through agents.
"""
