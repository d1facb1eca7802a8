"""One module per web framework. Each has the session's life, a view per user, and responses to errors.

Nothing is imported here: `boardclient.integrations.starlette` and its siblings are imported by those who use the framework.
"""
