"""One module per web framework: lifespan, a view per user, errors as responses.

Nothing is imported here: `boardclient.integrations.starlette` and its siblings are imported by those who use the framework.
"""
