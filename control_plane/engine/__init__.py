"""The workflow engine: profiles become rows, and one step at a time of them is done.

`transitions.advance` is its heart, a plain function over a transaction; `reconciler` runs it for the shards that this
worker holds.
"""
