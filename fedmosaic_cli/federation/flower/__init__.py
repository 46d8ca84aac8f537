"""Clients at other sites, reached through Flower, which carries bytes and knows nothing of what they say.

    coordinator <-socket-> server.py, in our SuperLink <-Flower over TLS-> SuperNode, client.py <-socket-> site

Flower is spoken to through its commands. Its library is imported in `server.py`, `client.py` and `wire.py` alone, which
Flower loads in processes of its own; nothing of ours that is large is imported there.
"""
