"""Transport between coordinator and sites through Flower, which forwards opaque bytes.

    coordinator <-socket-> relay_serverapp, SuperLink <-Flower over TLS-> node_program <-socket-> site

The package uses Flower's commands. Only `relay_serverapp`, `node_program`, `superexec` and `flower_messages` import its
library; they run in separate processes, so they import no heavy module of this package. A site executes no code that it
receives, and the coordinator's machine executes no app but our relay.
"""
