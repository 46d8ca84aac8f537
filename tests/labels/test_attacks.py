"""Clients that do not play by the rules: what reaches the server in their place, and what comes of it."""

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
from fedmosaic_cli.runner.run_state import capture_state, restore_state
from tests.toys import TOYS, from_disk, make_toy, models, run_toy, same

FREQUENCY, ENTROPY = FedMosaic(expertise="frequency", trust=1.0), FedMosaic(expertise="entropy", trust=1.0)
CROWD = make_toy([8, 8, 8, 8, 8], public=30)
CLASSES, EXAMPLES = 4, 50
SHARES = MessageSpec(EXAMPLES, CLASSES, expertise_encoding=ExpertiseEncoding.LEVELS, is_distribution=True)
SURENESS = MessageSpec(
    EXAMPLES, CLASSES, expertise_encoding=ExpertiseEncoding.LEVELS, max_expertise=float(np.log(CLASSES))
)


def opinion(client, labels, expertise, form=SHARES, number=1):
    return wire.encode_label_upload(MessageHeader(bytes(16), bytes(16), number, client), form, labels, expertise)


def scene_of(form=SHARES, number=1, clients=5, consensus=None):
    """Clients 0 and 1 would say class 3 of everything, the others the example's number, with a share of 1/4 each."""
    others = np.arange(EXAMPLES) % 3
    labels = {c: np.full(EXAMPLES, 3) if c < 2 else others for c in range(clients)}
    opinions = {c: opinion(c, labels[c], np.full(EXAMPLES, 0.25), form, number) for c in labels}
    return AttackContext(number, opinions, {}, consensus)


def attack(kind, form=SHARES, clients=(0, 1), unlike=None, **settings):
    return LabelAttack(AttackSettings(kind=kind, clients=clients, **settings), form, 0, least_similar_classes=unlike)


def sent(attacks, scene):
    """What the attackers send, as labels and expertise."""
    found = {d.sender_id: d.data for d in attacks.delivered_uploads(scene) if d.sender_id in attacks.settings.clients}
    form = attacks.spec
    return {c: (wire.decode_labels(data, form), wire.decode_expertise(data, form)) for c, data in found.items()}


def test_the_others_are_left_alone():
    scene = scene_of()
    for kind in ("random", "constant", "flip", "malformed", "missing"):
        honest = [d for d in attack(kind).delivered_uploads(scene) if d.sender_id > 1]
        assert [(d.sender_id, d.data) for d in honest] == [(c, scene.uploads[c]) for c in (2, 3, 4)]


def test_an_attack_begins_when_it_is_told_to():
    late = attack("flip", from_round=3)
    assert [d.data for d in late.delivered_uploads(scene_of(number=2))] == list(scene_of(number=2).uploads.values())
    assert late.delivered_uploads(scene_of(number=3))[0].data != scene_of(number=3).uploads[0]


def test_labels_at_random_differ_and_claim_all_there_is():
    told = sent(attack("random", SURENESS), scene_of(SURENESS))
    assert not np.array_equal(told[0][0], told[1][0])
    assert set(told[0][0]) == set(range(CLASSES))
    assert all(
        (expertise == expertise.max()).all() and expertise[0] == SURENESS.max_expertise
        for _, expertise in told.values()
    )


def test_one_class_everywhere_is_the_same_for_all_who_say_so():
    told = sent(attack("constant", SURENESS), scene_of(SURENESS))
    assert len({*told[0][0], *told[1][0]}) == 1


def test_flipping_keeps_its_own_expertise_and_collusion_does_not():
    alone, together = (sent(attack(kind, SURENESS), scene_of(SURENESS)) for kind in ("flip", "collude_flip"))
    for told, expertise in ((alone, 0.25), (together, SURENESS.max_expertise)):
        assert all((labels == 0).all() for labels, _ in told.values()), "the class after the last is the first"
        assert told[0][1] == pytest.approx(np.full(EXAMPLES, expertise), abs=0.01)


def test_those_who_know_everything_vote_for_the_least_likely_and_the_least_similar():
    unlike = np.array([1, 2, 3, 0])
    told = sent(attack("least_likely", SURENESS), scene_of(SURENESS))
    assert set(told[0][0]) <= {0, 1, 2, 3}
    assert not (told[0][0] == np.arange(EXAMPLES) % 3).any()
    told = sent(attack("class_prior", SURENESS, unlike=unlike), scene_of(SURENESS))
    assert np.array_equal(told[0][0], unlike[np.arange(EXAMPLES) % 3])


def test_inflated_expertise_ends_at_the_end_of_the_range():
    honest = sent(attack("inflate", SURENESS, flipped=False), scene_of(SURENESS))
    assert (honest[0][0] == 3).all()
    assert (honest[0][1] == SURENESS.max_expertise).all()
    assert (sent(attack("inflate", SURENESS), scene_of(SURENESS))[0][0] == 0).all()


def test_a_free_rider_says_what_it_heard_and_nothing_before():
    assert sent(attack("free_rider"), scene_of()) == {}
    heard = np.arange(EXAMPLES) % 4
    told = sent(attack("free_rider", SURENESS), scene_of(SURENESS, consensus=heard))
    assert np.array_equal(told[0][0], heard)


@pytest.mark.parametrize("kind", ["random", "collude_flip", "least_likely", "inflate", "constant"])
@pytest.mark.parametrize("adaptive", [False, True])
def test_whoever_claims_to_know_every_class_best_is_found_out_and_whoever_adapts_is_not(kind, adaptive):
    attacks = attack(kind, adaptive=adaptive)
    mixed = {c: opinion(c, np.arange(EXAMPLES) % 4, np.full(EXAMPLES, 0.25)) for c in (0, 1)}
    scene = AttackContext(1, {**scene_of().uploads, **mixed}, {}, None)
    inbox = LabelInbox(wire.ExpectedMessage(SHARES, bytes(16), bytes(16), 1, range(5)))
    for delivery in attacks.delivered_uploads(scene):
        inbox.receive(delivery.sender_id, delivery.data)
    passes = adaptive or kind == "constant"
    assert inbox.status(0) == ("accepted" if passes else RejectionReason.EXPERTISE_INCONSISTENT)
    assert inbox.status(2) == "accepted"


def test_no_spoilt_message_is_ever_accepted():
    reasons = set()
    bits = MessageSpec(EXAMPLES, 4, label_encoding=LabelEncoding.BITS)
    for form in (
        SHARES,
        SURENESS,
        MessageSpec(EXAMPLES, 3, expertise_encoding=ExpertiseEncoding.FLOATS),
        MessageSpec(EXAMPLES, 3),
        bits,
    ):
        for number in range(1, 60):
            labels = np.arange(EXAMPLES) % 3
            said = np.eye(4, dtype=np.uint8)[labels] if form is bits else labels
            scene = AttackContext(number, {0: opinion(0, said, np.full(EXAMPLES, 0.2), form, number)}, {}, None)
            inbox = LabelInbox(wire.ExpectedMessage(form, bytes(16), bytes(16), number, [0]))
            for delivery in attack("malformed", form, clients=(0,)).delivered_uploads(scene):
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


def test_the_least_similar_class_is_the_one_that_looks_least_alike():
    images = np.zeros((6, 2, 2, 1), dtype=np.uint8)
    images[0:2, 0], images[2:4, 0, 0], images[4:6, 1] = 200, 180, 220
    assert least_similar_classes(images, np.array([0, 0, 1, 1, 2, 2]), 3).tolist() == [2, 2, 0]


def consensus_by_round(method, toy, rounds=4):
    federation = toy.federation(method)
    with federation.worker_pool:
        return [(federation.state.server["labels"].clone(), done.rows) for done in run_rounds(federation, rounds)]


@pytest.mark.parametrize("method", [FREQUENCY, ENTROPY, FedCT()])
@pytest.mark.parametrize("kind", ["malformed", "replay", "late"])
def test_messages_that_are_not_used_are_as_if_never_sent(method, kind):
    absent = consensus_by_round(method, CROWD.changed(attack={"kind": "missing", "clients": (1, 3)}))
    present = consensus_by_round(method, CROWD.changed(attack={"kind": kind, "clients": (1, 3)}))
    for (left, _), (right, rows) in zip(absent, present, strict=True):
        assert torch.equal(left, right)
        assert {row["client"] for row in rows if row["message"] == "accepted"} == {0, 2, 4}
        assert {row["accepted"] for row in rows} == {3}
    last = present[-1][1]
    fates = {row["message"] for row in last if row["client"] in (1, 3)}
    if kind == "replay":
        assert (fates, last[0]["rejected"]) == ({"stale_round"}, {"stale_round": 2})
    elif kind == "late":
        assert (fates, last[0]["late"]) == ({"late"}, 2)
    else:
        assert sum(last[0]["rejected"].values()) == 2


@pytest.mark.parametrize("labels", ["krr", "xor"])
def test_liars_have_nothing_to_hide(labels, monkeypatch):
    """Behind noise, too, they know what they found, and lie about just that; nothing of it is in a ledger."""
    heard = {}
    monkeypatch.setattr(LabelAttack, "delivered_uploads", lambda self, scene: heard.update(scene.uploads) or [])
    noise = {"labels": labels, "label_epsilon": 0.5, "expertise": "none"}
    toy = CROWD.changed(attack={"kind": "flip", "clients": (1,), "from_round": 1}, privacy=noise)
    federation = toy.federation(ENTROPY)
    form = ENTROPY.message_spec(federation.ctx)
    with federation.worker_pool:
        next(run_rounds(federation, 1))
    for client, exact in ((1, True), (2, False)):
        player = federation.state.clients[client]
        found = player.predict_public(player.state["model"]).argmax(dim=1).numpy()
        said = wire.decode_labels(heard[client], form)
        assert np.array_equal(said if said.ndim == 1 else said.argmax(axis=1), found) == exact
        assert ("ledger" in player.state) != exact


def test_a_share_is_capped_by_how_many_vote_not_by_how_many_there_are():
    world = CROWD.changed(defence={"cap_share": "auto"}).federation(ENTROPY).ctx
    assert [voting_rules(world, voters).cap_share for voters in (4, 9, 10)] == [None, None, 0.2]


def test_nothing_to_repeat_is_nothing_sent():
    first = consensus_by_round(FREQUENCY, CROWD.changed(attack={"kind": "replay", "clients": (0,)}), rounds=1)[0][1]
    assert (first[0]["message"], first[0]["received"], first[0]["bits_up"]) == ("missing", 4, 0)


@pytest.mark.parametrize("kind", ["random", "replay", "malformed"])
@pytest.mark.parametrize("defence", [{}, {"normalise": True, "cap_share": 0.4, "reputation": True}])
def test_attackers_and_reputations_survive_a_break(kind, defence):
    toy = CROWD.changed(attack={"kind": kind, "clients": (0, 4)}, defence=defence)
    whole, broken, continued = run_toy(ENTROPY, toy, 5), run_toy(ENTROPY, toy, 2), toy.federation(ENTROPY)
    restore_state(continued, *from_disk(capture_state(broken.state)), 2)
    with continued.worker_pool:
        for _ in run_rounds(continued, 5):
            pass
    left, right = capture_state(whole.state)[0], capture_state(continued.state)[0]
    assert left.keys() == right.keys()
    assert all(np.array_equal(left[name], right[name], equal_nan=True) for name in left)
    assert ("server/agreement" in left) == bool(defence)


def test_too_few_messages_keep_the_consensus_that_there_is():
    toy = CROWD.changed(attack={"kind": "missing", "clients": (0, 1, 2), "from_round": 3})
    rounds = consensus_by_round(ENTROPY, toy)
    assert torch.equal(rounds[1][0], rounds[3][0])
    assert not torch.equal(rounds[0][0], rounds[1][0])
    assert [rows[0].get("degraded") for _, rows in rounds] == [None, None, 1, 1]
    assert all("vote_agreement" not in row for row in rounds[3][1])
    enough = consensus_by_round(ENTROPY, toy.changed(defence={"min_clients": 2}))
    assert [rows[0].get("degraded") for _, rows in enough] == [None] * 4


def test_who_is_late_is_waited_for_only_if_it_must_be():
    late = CROWD.changed(attack={"kind": "late", "clients": (0, 1, 2)})
    rounds = consensus_by_round(ENTROPY, late)
    assert [(rows[0]["retried"], rows[0]["accepted"]) for _, rows in rounds] == [(1, 5)] * 4
    plain = consensus_by_round(ENTROPY, CROWD)
    assert all(torch.equal(left, right) for (left, _), (right, _) in zip(rounds, plain, strict=True))


def test_without_any_consensus_everybody_trains_alone():
    toy = CROWD.changed(attack={"kind": "missing", "clients": (0, 1, 2, 3, 4)})
    federation = run_toy(FREQUENCY, toy)
    assert "labels" not in federation.state.server
    assert same(models(FREQUENCY, toy), models(Local(), CROWD))


def test_poison_turns_the_labels_that_are_trained_on_and_no_others():
    toy = CROWD.changed(attack={"kind": "poison_data", "clients": (1,)})
    plain, turned = CROWD.federation(FREQUENCY), toy.federation(FREQUENCY)
    for client in range(5):
        left, right = (f.state.clients[client].private.labels for f in (plain, turned))
        assert torch.equal(right, 2 - left if client == 1 else left)
        assert torch.equal(plain.eval_tasks[client].test.labels, turned.eval_tasks[client].test.labels)


def test_who_poisons_its_data_is_asked_about_the_labels_that_it_trained_on():
    toy = CROWD.changed(attack={"kind": "poison_data", "clients": (1,)})
    once = poison_clients(toy.partition, (1,))
    for dealt_again in (once, poison_clients(once, (1,))):
        for client, shard in enumerate(dealt_again.shards):
            straight = toy.partition.shards[client]
            for part, turned in (("train", client == 1), ("test", False)):
                before, after = straight.split_labels(part, toy.dataset), shard.split_labels(part, toy.dataset)
                assert np.array_equal(after, 2 - before if turned else before)


def test_a_plain_majority_is_fedct():
    toy = CROWD.changed(attack={"kind": "random", "clients": (0, 1)})
    majority = toy.changed(defence={"vote": "majority"})
    assert same(models(ENTROPY, majority), models(FedCT(), toy))
    assert not same(models(ENTROPY, toy), models(FedCT(), toy))


@pytest.mark.parametrize("defence", [{"normalise": True}, {"cap_share": 0.05}, {"vote": "trimmed", "trim": 0.3}])
def test_every_defence_does_something(defence):
    skew = CROWD.changed(attack={"kind": "constant", "clients": (0,)})
    plain, defended = (consensus_by_round(ENTROPY, toy) for toy in (skew, skew.changed(defence=defence)))
    assert any(not torch.equal(left, right) for (left, _), (right, _) in zip(plain, defended, strict=True))


def test_both_votes_and_the_weight_of_each_are_logged():
    rows = consensus_by_round(ENTROPY, CROWD)[-1][1]
    assert sum(row["weight_share"] for row in rows) == pytest.approx(1)
    assert {row["heaviest_share"] for row in rows} == {max(row["weight_share"] for row in rows)}
    for key in ("votes_differ", "weighted_accuracy", "majority_accuracy", "vote_agreement"):
        assert all(0 <= row[key] <= 1 for row in rows)
    assert {row["weighted_accuracy"] for row in rows} == {row["pseudo_label_accuracy"] for row in rows}
    reputed = consensus_by_round(ENTROPY, CROWD.changed(defence={"reputation": True}))
    assert {row["reputation"] for row in reputed[0][1]} == {1.0}
    assert all(0 <= row["reputation"] <= 1 for row in reputed[-1][1])


def test_an_example_without_a_label_adds_nothing_to_the_loss():
    logits, labels = torch.randn(6, 3), torch.tensor([0, -1, 2, -1, 1, 1])
    values = PseudoLabelLoss(labels, 1.0).example_losses(logits, labels)
    assert values[[1, 3]].tolist() == [0, 0]
    there = labels >= 0
    assert torch.equal(values[there], PseudoLabelLoss(labels, 1.0).example_losses(logits[there], labels[there]))


@pytest.mark.parametrize("toy", [CROWD, CROWD.changed(execution="stacked")])
@pytest.mark.parametrize("method", [FREQUENCY, FedMosaic(trust="paper")])
def test_labels_that_are_missing_reach_clients_as_missing(method, toy, monkeypatch):
    """As in a first round in which some rows have no weight."""
    federation = toy.federation(method)
    with federation.worker_pool:
        rounds = run_rounds(federation, 3)
        next(rounds)
        federation.state.server["labels"][:5] = -1
        second = next(rounds)
    assert all(row["bits_down"] == 8 * 8 + 8 * 4 for row in second.rows), "30 labels and a mask"
    assert all(np.isfinite(row["loss_public"]) for row in second.rows)


def test_a_forest_does_not_learn_that_there_is_a_class_without_a_name():
    from fedmosaic_cli.models.model_settings import ModelSettings

    toy = TOYS["even"].changed(models={0: ModelSettings(name="random-forest", trees=5)})
    federation = toy.federation(FREQUENCY)
    with federation.worker_pool:
        rounds = run_rounds(federation, 3)
        next(rounds)
        federation.state.server["labels"][:3] = -1
        next(rounds)
        assert set(federation.state.clients[0].learner._cached_estimator.classes_) <= {0, 1, 2}
