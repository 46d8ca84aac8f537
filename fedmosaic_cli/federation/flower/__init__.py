"""Transport between coordinator and sites through Flower, which forwards opaque bytes.

    coordinator <-socket-> relay_serverapp, SuperLink <-Flower over TLS-> SuperNode, relay_clientapp <-socket-> site

The package uses Flower's commands. Only `relay_serverapp`, `relay_clientapp` and `flower_messages` import its library;
Flower loads them in its own processes, so they import no heavy module of this package.
"""
