"""The operators' HTTP API: one table of verbs (`verbs.py`) gives router, document, client and commands.

Shapes are what goes over the wire; handlers are plain functions over a transaction; `dispatch.py` puts who may do
what, validation and the audit trail around them; `app.py` is the HTTP skin.
"""
