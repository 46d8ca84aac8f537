"""Attacks: what the server receives from attackers, and how it changes the consensus."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedmosaic_cli.data.partitioning.partition import poison_clients
from fedmosaic_cli.engine.losses import PseudoLabelLoss
from fedmosaic_cli.engine.rounds import run_rounds
from fedmosaic_cli.labels import wire
from fedmosaic_cli.labels.attacks import MALFORMED_VARIANTS, AttackContext, LabelAttack, least_similar_classes
from fedmosaic_cli.labels.inbox import LabelInbox
from fedmosaic_cli.labels.label_settings import AttackSettings
from fedmosaic_cli.labels.sharing import voting_rules
from fedmosaic_cli.labels.wire import ExpertiseEncoding, LabelEncoding, MessageHeader, MessageSpec, RejectionReason
from fedmosaic_cli.methods.fedct import FedCT
from fedmosaic_cli.methods.fedmosaic import FedMosaic
from fedmosaic_cli.methods.local import Local
from fedmosaic_cli.runner.checkpoint_state import capture_state, restore_state
from tests.toys import TOYS, from_disk, make_toy, models, run_toy, same

FREQUENCY, ENTROPY = FedMosaic(expertise="frequency", trust=1.0), FedMosaic(expertise="entropy", trust=1.0)
FIVE_CLIENTS = make_toy([8, 8, 8, 8, 8], public=30)
CLASSES, EXAMPLES = 4, 50
SHARES_SPEC = MessageSpec(EXAMPLES, CLASSES, expertise_encoding=ExpertiseEncoding.LEVELS, is_distribution=True)
ENTROPY_SPEC = MessageSpec(
    EXAMPLES, CLASSES, expertise_encoding=ExpertiseEncoding.LEVELS, max_expertise=float(np.log(CLASSES))
)


def encode_upload(client, labels, expertise, spec=SHARES_SPEC, number=1):
    return wire.encode_label_upload(MessageHeader(bytes(16), bytes(16), number, client), spec, labels, expertise)


def make_context(spec=SHARES_SPEC, number=1, clients=5, consensus=None):
    """Honest uploads: clients 0 and 1 predict class 3, the others the example number modulo 3; expertise is 1/4."""
    others = np.arange(EXAMPLES) % 3
    labels = {c: np.full(EXAMPLES, 3) if c < 2 else others for c in range(clients)}
    uploads = {c: encode_upload(c, labels[c], np.full(EXAMPLES, 0.25), spec, number) for c in labels}
    return AttackContext(number, uploads, {}, consensus)


def attack(kind, spec=SHARES_SPEC, clients=(0, 1), least_similar=None, **settings):
    return LabelAttack(
        AttackSettings(kind=kind, clients=clients, **settings), spec, 0, least_similar_classes=least_similar
    )


def sent(attacks, context):
    """Return the labels and expertise that the attackers send, by client."""
    uploads = {
        d.sender_id: d.data for d in attacks.delivered_uploads(context) if d.sender_id in attacks.settings.clients
    }
    spec = attacks.spec
    return {c: (wire.decode_labels(data, spec), wire.decode_expertise(data, spec)) for c, data in uploads.items()}


def test_honest_uploads_are_unchanged():
    context = make_context()
    for kind in ("random", "constant", "flip", "malformed", "missing"):
        honest = [d for d in attack(kind).delivered_uploads(context) if d.sender_id > 1]
        assert [(d.sender_id, d.data) for d in honest] == [(c, context.uploads[c]) for c in (2, 3, 4)]


def test_attack_starts_in_the_configured_round():
    late = attack("flip", from_round=3)
    delivered = [d.data for d in late.delivered_uploads(make_context(number=2))]
    assert delivered == list(make_context(number=2).uploads.values())
    assert late.delivered_uploads(make_context(number=3))[0].data != make_context(number=3).uploads[0]


def test_random_labels_differ_between_attackers_and_claim_maximal_expertise():
    uploads = sent(attack("random", ENTROPY_SPEC), make_context(ENTROPY_SPEC))
    assert not np.array_equal(uploads[0][0], uploads[1][0])
    assert set(uploads[0][0]) == set(range(CLASSES))
    assert all(
        (expertise == expertise.max()).all() and expertise[0] == ENTROPY_SPEC.max_expertise
        for _, expertise in uploads.values()
    )


def test_constant_attackers_send_the_same_class():
    uploads = sent(attack("constant", ENTROPY_SPEC), make_context(ENTROPY_SPEC))
    assert len({*uploads[0][0], *uploads[1][0]}) == 1


def test_flip_keeps_expertise_and_collusion_claims_the_maximum():
    alone, colluding = (
        sent(attack(kind, ENTROPY_SPEC), make_context(ENTROPY_SPEC)) for kind in ("flip", "collude_flip")
    )
    for uploads, expertise in ((alone, 0.25), (colluding, ENTROPY_SPEC.max_expertise)):
        assert all((labels == 0).all() for labels, _ in uploads.values()), "class 0 follows the last class"
        assert uploads[0][1] == pytest.approx(np.full(EXAMPLES, expertise), abs=0.01)


def test_omniscient_attackers_vote_for_the_least_likely_or_least_similar_class():
    least_similar = np.array([1, 2, 3, 0])
    uploads = sent(attack("least_likely", ENTROPY_SPEC), make_context(ENTROPY_SPEC))
    assert set(uploads[0][0]) <= {0, 1, 2, 3}
    assert not (uploads[0][0] == np.arange(EXAMPLES) % 3).any()
    uploads = sent(attack("class_prior", ENTROPY_SPEC, least_similar=least_similar), make_context(ENTROPY_SPEC))
    assert np.array_equal(uploads[0][0], least_similar[np.arange(EXAMPLES) % 3])


def test_inflated_expertise_is_clipped_to_the_maximum():
    honest = sent(attack("inflate", ENTROPY_SPEC, flipped=False), make_context(ENTROPY_SPEC))
    assert (honest[0][0] == 3).all()
    assert (honest[0][1] == ENTROPY_SPEC.max_expertise).all()
    assert (sent(attack("inflate", ENTROPY_SPEC), make_context(ENTROPY_SPEC))[0][0] == 0).all()


def test_free_rider_repeats_the_consensus_and_sends_nothing_before():
    assert sent(attack("free_rider"), make_context()) == {}
    consensus = np.arange(EXAMPLES) % 4
    uploads = sent(attack("free_rider", ENTROPY_SPEC), make_context(ENTROPY_SPEC, consensus=consensus))
    assert np.array_equal(uploads[0][0], consensus)


@pytest.mark.parametrize("kind", ["random", "collude_flip", "least_likely", "inflate", "constant"])
@pytest.mark.parametrize("adaptive", [False, True])
def test_inconsistent_shares_are_rejected_unless_the_attack_adapts(kind, adaptive):
    attacks = attack(kind, adaptive=adaptive)
    mixed = {c: encode_upload(c, np.arange(EXAMPLES) % 4, np.full(EXAMPLES, 0.25)) for c in (0, 1)}
    context = AttackContext(1, {**make_context().uploads, **mixed}, {}, None)
    inbox = LabelInbox(wire.ExpectedMessage(SHARES_SPEC, bytes(16), bytes(16), 1, range(5)))
    for delivery in attacks.delivered_uploads(context):
        inbox.receive(delivery.sender_id, delivery.data)
    passes = adaptive or kind == "constant"
    assert inbox.status(0) == ("accepted" if passes else RejectionReason.EXPERTISE_INCONSISTENT)
    assert inbox.status(2) == "accepted"


def test_malformed_messages_are_never_accepted():
    reasons = set()
    bits = MessageSpec(EXAMPLES, 4, label_encoding=LabelEncoding.BITS)
    for spec in (
        SHARES_SPEC,
        ENTROPY_SPEC,
        MessageSpec(EXAMPLES, 3, expertise_encoding=ExpertiseEncoding.FLOATS),
        MessageSpec(EXAMPLES, 3),
        bits,
    ):
        for number in range(1, 60):
            labels = np.arange(EXAMPLES) % 3
            encoded = np.eye(4, dtype=np.uint8)[labels] if spec is bits else labels
            context = AttackContext(
                number, {0: encode_upload(0, encoded, np.full(EXAMPLES, 0.2), spec, number)}, {}, None
            )
            inbox = LabelInbox(wire.ExpectedMessage(spec, bytes(16), bytes(16), number, [0]))
            for delivery in attack("malformed", spec, clients=(0,)).delivered_uploads(context):
                inbox.receive(delivery.sender_id, delivery.data)
            assert inbox.num_valid == 0, inbox.status(0)
            reasons.add(inbox.status(0))
    assert {
        RejectionReason.EXPERTISE_NONFINITE,
        RejectionReason.EXPERTISE_RANGE,
        RejectionReason.LABEL_RANGE,
        RejectionReason.TRUNCATED,
    } <= reasons
    assert len(MALFORMED_VARIANTS) == 7


def test_least_similar_class_has_the_most_different_images():
    images = np.zeros((6, 2, 2, 1), dtype=np.uint8)
    images[0:2, 0], images[2:4, 0, 0], images[4:6, 1] = 200, 180, 220
    assert least_similar_classes(images, np.array([0, 0, 1, 1, 2, 2]), 3).tolist() == [2, 2, 0]


def consensus_by_round(method, toy, rounds=4):
    federation = toy.federation(method)
    with federation.worker_pool:
        return [(federation.state.server.state["labels"].clone(), done.rows) for done in run_rounds(federation, rounds)]


@pytest.mark.parametrize("method", [FREQUENCY, ENTROPY, FedCT()])
@pytest.mark.parametrize("kind", ["malformed", "replay", "late"])
def test_rejected_or_late_messages_equal_missing_messages(method, kind):
    absent = consensus_by_round(method, FIVE_CLIENTS.changed(attack={"kind": "missing", "clients": (1, 3)}))
    present = consensus_by_round(method, FIVE_CLIENTS.changed(attack={"kind": kind, "clients": (1, 3)}))
    for (left, _), (right, rows) in zip(absent, present, strict=True):
        assert torch.equal(left, right)
        assert {row["client"] for row in rows if row["message"] == "accepted"} == {0, 2, 4}
        assert {row["accepted"] for row in rows} == {3}
    last = present[-1][1]
    statuses = {row["message"] for row in last if row["client"] in (1, 3)}
    if kind == "replay":
        assert (statuses, last[0]["rejected"]) == ({"stale_round"}, {"stale_round": 2})
    elif kind == "late":
        assert (statuses, last[0]["late"]) == ({"late"}, 2)
    else:
        assert sum(last[0]["rejected"].values()) == 2


@pytest.mark.parametrize("labels", ["krr", "xor"])
def test_attackers_do_not_use_the_privacy_mechanism(labels, monkeypatch):
    """With a privacy mechanism, attackers still start from their exact labels, and they have no ledger."""
    received = {}
    monkeypatch.setattr(LabelAttack, "delivered_uploads", lambda self, context: received.update(context.uploads) or [])
    noise = {"labels": labels, "label_epsilon": 0.5, "expertise": "none"}
    toy = FIVE_CLIENTS.changed(attack={"kind": "flip", "clients": (1,), "from_round": 1}, privacy=noise)
    federation = toy.federation(ENTROPY)
    spec = ENTROPY.message_spec(federation.ctx)
    with federation.worker_pool:
        next(run_rounds(federation, 1))
    for client, exact in ((1, True), (2, False)):
        sender = federation.state.clients[client]
        predicted = sender.predict_public(sender.state["model"]).argmax(dim=1).numpy()
        sent_labels = wire.decode_labels(received[client], spec)
        if sent_labels.ndim > 1:
            sent_labels = sent_labels.argmax(axis=1)
        assert np.array_equal(sent_labels, predicted) == exact
        assert ("ledger" in sender.state) != exact


def test_cap_share_depends_on_the_number_of_voters():
    ctx = FIVE_CLIENTS.changed(defence={"cap_share": "auto"}).federation(ENTROPY).ctx
    assert [voting_rules(ctx, voters).cap_share for voters in (4, 9, 10)] == [None, None, 0.2]


def test_replay_sends_nothing_in_the_first_round():
    toy = FIVE_CLIENTS.changed(attack={"kind": "replay", "clients": (0,)})
    first = consensus_by_round(FREQUENCY, toy, rounds=1)[0][1]
    assert (first[0]["message"], first[0]["received"], first[0]["bits_up"]) == ("missing", 4, 0)


@pytest.mark.parametrize("kind", ["random", "replay", "malformed"])
@pytest.mark.parametrize("defence", [{}, {"normalise": True, "cap_share": 0.4, "reputation": True}])
def test_resume_keeps_attackers_and_reputations(kind, defence):
    toy = FIVE_CLIENTS.changed(attack={"kind": kind, "clients": (0, 4)}, defence=defence)
    uninterrupted, stopped, resumed = run_toy(ENTROPY, toy, 5), run_toy(ENTROPY, toy, 2), toy.federation(ENTROPY)
    restore_state(resumed, *from_disk(capture_state(stopped.state)), 2)
    with resumed.worker_pool:
        for _ in run_rounds(resumed, 5):
            pass
    left, right = capture_state(uninterrupted.state)[0], capture_state(resumed.state)[0]
    assert left.keys() == right.keys()
    assert all(np.array_equal(left[name], right[name], equal_nan=True) for name in left)
    assert ("server/agreement" in left) == bool(defence)


def test_too_few_messages_keep_the_previous_consensus():
    toy = FIVE_CLIENTS.changed(attack={"kind": "missing", "clients": (0, 1, 2), "from_round": 3})
    rounds = consensus_by_round(ENTROPY, toy)
    assert torch.equal(rounds[1][0], rounds[3][0])
    assert not torch.equal(rounds[0][0], rounds[1][0])
    assert [rows[0].get("degraded") for _, rows in rounds] == [None, None, 1, 1]
    assert all("vote_agreement" not in row for row in rounds[3][1])
    enough = consensus_by_round(ENTROPY, toy.changed(defence={"min_clients": 2}))
    assert [rows[0].get("degraded") for _, rows in enough] == [None] * 4


def test_late_messages_are_used_if_there_are_too_few_others():
    late = FIVE_CLIENTS.changed(attack={"kind": "late", "clients": (0, 1, 2)})
    rounds = consensus_by_round(ENTROPY, late)
    assert [(rows[0]["retried"], rows[0]["accepted"]) for _, rows in rounds] == [(1, 5)] * 4
    plain = consensus_by_round(ENTROPY, FIVE_CLIENTS)
    assert all(torch.equal(left, right) for (left, _), (right, _) in zip(rounds, plain, strict=True))


def test_without_consensus_all_clients_train_locally():
    toy = FIVE_CLIENTS.changed(attack={"kind": "missing", "clients": (0, 1, 2, 3, 4)})
    federation = run_toy(FREQUENCY, toy)
    assert "labels" not in federation.state.server.state
    assert same(models(FREQUENCY, toy), models(Local(), FIVE_CLIENTS))


def test_poisoning_flips_training_labels_only():
    toy = FIVE_CLIENTS.changed(attack={"kind": "poison_data", "clients": (1,)})
    plain, poisoned = FIVE_CLIENTS.federation(FREQUENCY), toy.federation(FREQUENCY)
    for client in range(5):
        left, right = (f.state.clients[client].private.labels for f in (plain, poisoned))
        assert torch.equal(right, 2 - left if client == 1 else left)
        assert torch.equal(plain.eval_tasks[client].test.labels, poisoned.eval_tasks[client].test.labels)


def test_poisoned_shard_has_flipped_training_labels_only():
    toy = FIVE_CLIENTS.changed(attack={"kind": "poison_data", "clients": (1,)})
    once = poison_clients(toy.partition, (1,))
    for partition in (once, poison_clients(once, (1,))):
        for client, shard in enumerate(partition.shards):
            original = toy.partition.shards[client]
            for part, is_flipped in (("train", client == 1), ("test", False)):
                before, after = original.split_labels(part, toy.dataset), shard.split_labels(part, toy.dataset)
                assert np.array_equal(after, 2 - before if is_flipped else before)


def test_majority_vote_equals_fedct():
    toy = FIVE_CLIENTS.changed(attack={"kind": "random", "clients": (0, 1)})
    majority = toy.changed(defence={"vote": "majority"})
    assert same(models(ENTROPY, majority), models(FedCT(), toy))
    assert not same(models(ENTROPY, toy), models(FedCT(), toy))


@pytest.mark.parametrize("defence", [{"normalise": True}, {"cap_share": 0.05}, {"vote": "trimmed", "trim": 0.3}])
def test_every_defence_changes_the_consensus(defence):
    skew = FIVE_CLIENTS.changed(attack={"kind": "constant", "clients": (0,)})
    plain, defended = (consensus_by_round(ENTROPY, toy) for toy in (skew, skew.changed(defence=defence)))
    assert any(not torch.equal(left, right) for (left, _), (right, _) in zip(plain, defended, strict=True))


def test_weighted_and_majority_votes_and_weight_shares_are_logged():
    rows = consensus_by_round(ENTROPY, FIVE_CLIENTS)[-1][1]
    assert sum(row["weight_share"] for row in rows) == pytest.approx(1)
    assert {row["heaviest_share"] for row in rows} == {max(row["weight_share"] for row in rows)}
    for key in ("votes_differ", "weighted_accuracy", "majority_accuracy", "vote_agreement"):
        assert all(0 <= row[key] <= 1 for row in rows)
    assert {row["weighted_accuracy"] for row in rows} == {row["pseudo_label_accuracy"] for row in rows}
    with_reputation = consensus_by_round(ENTROPY, FIVE_CLIENTS.changed(defence={"reputation": True}))
    assert {row["reputation"] for row in with_reputation[0][1]} == {1.0}
    assert all(0 <= row["reputation"] <= 1 for row in with_reputation[-1][1])


def test_examples_without_label_do_not_contribute_to_the_loss():
    logits, labels = torch.randn(6, 3), torch.tensor([0, -1, 2, -1, 1, 1])
    values = PseudoLabelLoss(labels, 1.0).example_losses(logits, labels)
    assert values[[1, 3]].tolist() == [0, 0]
    labelled = labels >= 0
    expected = PseudoLabelLoss(labels, 1.0).example_losses(logits[labelled], labels[labelled])
    assert torch.equal(values[labelled], expected)


@pytest.mark.parametrize("toy", [FIVE_CLIENTS, FIVE_CLIENTS.changed(execution="stacked")])
@pytest.mark.parametrize("method", [FREQUENCY, FedMosaic(trust="paper")])
def test_missing_labels_are_sent_as_missing(method, toy, monkeypatch):
    """As after a first round in which some examples have no votes."""
    federation = toy.federation(method)
    with federation.worker_pool:
        rounds = run_rounds(federation, 3)
        next(rounds)
        federation.state.server.state["labels"][:5] = -1
        second = next(rounds)
    assert all(row["bits_down"] == 8 * 8 + 8 * 4 for row in second.rows), "30 labels and a mask"
    assert all(np.isfinite(row["loss_public"]) for row in second.rows)


def test_random_forest_does_not_learn_missing_labels_as_a_class():
    from fedmosaic_cli.models.model_settings import ModelSettings

    toy = TOYS["even"].changed(models={0: ModelSettings(name="random-forest", trees=5)})
    federation = toy.federation(FREQUENCY)
    with federation.worker_pool:
        rounds = run_rounds(federation, 3)
        next(rounds)
        federation.state.server.state["labels"][:3] = -1
        next(rounds)
        assert set(federation.state.clients[0].learner._cached_estimator.classes_) <= {0, 1, 2}
