"""The agent on a site host: dials out to the control plane, journals what it is asked, and does it at most once.

`service` assembles the daemon; `executor` holds the rule that nothing is done twice; `journal` carries it over a
crash.
"""
