"""Results on the public set are computed once per round and kept for the round."""

from __future__ import annotations

import weakref

from fedmosaic_cli.methods.registry import METHODS
from tests.toys import TOYS


class Result:
    """A result that can be referred to weakly."""


def test_results_of_a_round_are_shared_and_dropped_in_the_next_round():
    clients = TOYS["even"].federation(METHODS["student"]()).state.clients
    trainer = clients[0]._public_trainer
    one, other = (trainer.result(1, key, lambda server: Result()) for key in ("one", "other"))
    assert trainer.result(1, "one", lambda server: Result()) is one
    assert one is not other
    references = [weakref.ref(one), weakref.ref(other)]
    del one, other
    assert None not in [reference() for reference in references]
    trainer.result(2, "one", lambda server: Result())
    assert [reference() for reference in references] == [None, None]
