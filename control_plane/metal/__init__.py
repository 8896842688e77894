"""Metal: what state each machine is in, the workflows that move it, and the steps that boot and install it.

`states` is the table; `verbs` start, abort and recover; `owner` takes in how the workflows ended.
"""
