"""The parts of `boardclient.web`: cookies, flows, accounts and options."""
