"""Clients on remote sites: protocol, transport, coordinator, site and its policy."""
