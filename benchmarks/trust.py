"""The accuracy cost of noise in messages, and the effect of malicious clients: the tables of docs/privacy.md.

python benchmarks/trust.py epsilon digits            # about 6 minutes on two cores
python benchmarks/trust.py epsilon fashion-mnist     # about 15
python benchmarks/trust.py randomised digits         # about 8
python benchmarks/trust.py attackers digits          # about 8
python benchmarks/trust.py attackers fashion-mnist   # about 20
python benchmarks/trust.py kinds digits              # about 5
python benchmarks/trust.py kinds fashion-mnist       # about 12

Runs go to the directory `trust-study` and are kept: what is finished is not made again. Numbers are means over seeds
0, 1, 2, of the last round; the accuracy is that of the clients that do not attack.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

SEEDS = "0,1,2"
DIGITS = ["--preset", "quickstart-label-skew"]
# A setting that runs in minutes: about 150 examples per client.
FASHION = [
    *("--preset", "practical-fashion-mnist", "--rounds", "30", "--set", "train.local_steps=10"),
    *("--set", "train.lr=0.003", "--set", "model.hidden=[64]", "--set", "data.val_fraction=0.96"),
    *("--set", "data.alpha=1.0", "--set", "data.public_size=1000", "--set", "methods.fedmosaic.trust=stabilised"),
]
SETTINGS = {"digits": DIGITS, "fashion-mnist": FASHION}
# Student is for clients with few examples.
STUDENT_SETTINGS = {**SETTINGS, "digits": ["--preset", "quickstart"]}
FIFTEEN = {"digits": ["--set", "data.clients=15"], "fashion-mnist": []}
PUBLIC = {"digits": 300, "fashion-mnist": 1000}
DEFENCES = {
    "none (the paper)": {},
    "normalise": {"normalise": "true"},
    "cap_share 0.2": {"cap_share": "0.2"},
    "trimmed": {"vote": "trimmed"},
    "majority": {"vote": "majority"},
    "robust": {"normalise": "true", "cap_share": "0.2", "reputation": "true"},
}
KINDS = (
    *("random", "constant", "flip", "collude_flip", "least_likely", "class_prior"),
    *("inflate", "free_rider", "poison_data"),
)


@dataclass(frozen=True)
class StudyResult:
    """Means over seeds, in percent; the spread is the sample standard deviation over seeds."""

    consensus: float
    majority: float
    accuracy: float
    spread: float
    total_epsilon: str
    per_client: list[float]

    def gain(self, baseline: StudyResult) -> str:
        """Mean difference to a baseline, and how many clients gain and lose."""
        gains = [own - other for own, other in zip(self.per_client, baseline.per_client, strict=True)]
        helped, hurt = sum(each > 1e-9 for each in gains), sum(each < -1e-9 for each in gains)
        return f"{fmean(gains):+.1f} ({helped}/{hurt})"


def runs(name: str, command: list[str], options: list[str]) -> StudyResult:
    """Start the runs that are not finished, and read their results."""
    folder = Path("trust-study") / name
    words = [sys.executable, "-m", "fedmosaic_cli", *command, *options, "--seeds", SEEDS, "--runs-dir", str(folder)]
    print(f"  fedmosaic {' '.join([*command, *options])}", file=sys.stderr, flush=True)
    subprocess.run([*words, "--quiet", "--resume"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    consensus, majority, accuracy, per_client, total = [], [], [], [], "-"
    for path in sorted(folder.glob("*/*/seed-*/summary.json")):
        summary = json.loads(path.read_bytes())
        last = json.loads((path.parent / "rounds.jsonl").read_text().splitlines()[-1])
        consensus.append(100 * last.get("pseudo_label_accuracy", float("nan")))
        majority.append(100 * last.get("majority_accuracy", float("nan")))
        accuracy.append(100 * summary.get("honest_accuracy", summary["accuracy"])["client_mean"])
        per_client += [100 * value for value in summary["accuracy"]["per_client"]]
        total = str(summary.get("privacy", {}).get("total_epsilon", total))
    return StudyResult(fmean(consensus), fmean(majority), fmean(accuracy), stdev(accuracy), total, per_client)


def epsilon(data: str) -> None:
    """Accuracy against the budget: of one label, and in total."""
    options = [*SETTINGS[data], "--expertise", "frequency"]
    local = runs(f"{data}/local", ["baseline", "local"], SETTINGS[data])
    print(f"{data}, {PUBLIC[data]} public examples; Local training {local.accuracy:.1f}\n")
    print("| noise | total epsilon | consensus | FedMosaic | FedCT: consensus | FedCT |")
    print("|---|---:|---:|---:|---:|---:|")
    budgets: dict[str, list[str]] = {"none": []}
    for each in ("8", "4", "2", "1", "0.5"):
        label = ["--set", f"privacy.label_epsilon={each}"]
        budgets[f"krr, {each} a label"] = ["--dp", "krr,none", *label]
        if float(each) <= 2:
            budgets[f"xor, {each} a label"] = ["--dp", "xor,none", *label]
    budgets["krr and gaussian, 4 a label, sigma = 1"] = [
        *("--dp", "krr,gaussian", "--set", "privacy.label_epsilon=4"),
        *("--set", f"privacy.noise_multiplier={PUBLIC[data] ** -0.5:.6f}"),
    ]
    for total in ("100", "10", "1"):
        budgets[f"krr and histogram, budget {total}"] = ["--dp", "krr,histogram", "--dp-epsilon", total]
    for name, noise in budgets.items():
        slug = "-".join("".join(c if c.isalnum() else " " for c in name).split())
        ours = runs(f"{data}/{slug}/fedmosaic", ["train"], [*options, *noise])
        co_training = [word.replace("krr,gaussian", "krr,none").replace("krr,histogram", "krr,none") for word in noise]
        if "gaussian" in name:
            co_training = co_training[:4]
        fedct = runs(f"{data}/{slug}/fedct", ["baseline", "fedct"], [*SETTINGS[data], *co_training])
        spent = "-" if ours.total_epsilon == "-" else f"{float(ours.total_epsilon):.3g}"
        print(
            f"| {name} | {spent} | {ours.consensus:.1f} | {ours.accuracy:.1f} ± {ours.spread:.1f} | "
            f"{fedct.consensus:.1f} | {fedct.accuracy:.1f} ± {fedct.spread:.1f} |",
            flush=True,
        )


def randomised(data: str) -> None:
    """What `student` gains over Local with randomised labels, and without correction for their noise."""
    for public_size, budgets in (("500", ("none", "inf", "8", "4", "2", "1", "0.5")), ("100", ("none", "4", "2", "1"))):
        options = [*STUDENT_SETTINGS[data], "--set", f"data.public_size={public_size}"]
        local = runs(f"{data}/randomised/{public_size}/local", ["baseline", "local"], options)
        print(f"{data}, {public_size} public examples; Local training {local.accuracy:.1f}\n")
        print("| epsilon per label | worst-case epsilon | right labels | Student | without correction |")
        print("|---|---:|---:|---:|---:|")
        for budget in budgets:
            noise = [] if budget == "none" else ["--dp", "krr", "--set", f"privacy.label_epsilon={budget}"]
            folder = f"{data}/randomised/{public_size}/{budget}"
            ours = runs(f"{folder}/student", ["baseline", "student"], [*options, *noise])
            gains = [ours.gain(local)]
            if budget not in ("none", "inf"):
                plain = Path(__file__).with_name("uncorrected_student.py")
                command = ["train", "--method", f"{plain}:Uncorrected"]
                gains.append(runs(f"{folder}/uncorrected", command, [*options, *noise]).gain(local))
            spent = "-" if ours.total_epsilon == "-" else f"{float(ours.total_epsilon):.6g}"
            print(f"| {budget} | {spent} | {ours.consensus:.1f} | {' | '.join((*gains, '-')[:2])} |", flush=True)
        print()


def attacked(data: str, kind: str, count: int, defence: dict[str, str], name: str) -> StudyResult:
    attackers = list(range(count))
    attack = ["--set", f"attack.kind={kind}", "--set", f"attack.clients={attackers}", "--set", "attack.adaptive=true"]
    defence_options = [word for key, value in defence.items() for word in ("--set", f"defence.{key}={value}")]
    options = [*SETTINGS[data], *FIFTEEN[data], "--expertise", "entropy", *(attack if count else []), *defence_options]
    return runs(f"{data}/{kind if count else 'none'}-{count}/{name}", ["train"], options)


def attackers(data: str) -> None:
    """Consensus and honest clients against the number of colluding attackers, for each defence."""
    local = runs(f"{data}/local-15", ["baseline", "local"], [*SETTINGS[data], *FIFTEEN[data]])
    print(f"{data}, 15 clients, collude_flip; Local training {local.accuracy:.1f}; consensus / honest clients\n")
    print(f"| defence | {' | '.join(f'{count} of 15' for count in range(5))} |")
    print(f"|---|{'---:|' * 5}")
    for name, defence in DEFENCES.items():
        slug = name.split(" (")[0].replace(" ", "-")
        cells = [attacked(data, "collude_flip", count, defence, slug) for count in range(5)]
        print(f"| {name} | {' | '.join(f'{c.consensus:.1f} / {c.accuracy:.1f}' for c in cells)} |", flush=True)


def kinds(data: str) -> None:
    """Three attackers of 15 for each attack, without defence and with `robust`."""
    print(f"{data}, 3 attackers of 15; consensus / honest clients\n")
    print("| attack | none (the paper) | robust |")
    print("|---|---:|---:|")
    for kind in KINDS:
        cells = [
            attacked(data, kind, 3, DEFENCES[name], name.split(" (")[0]) for name in ("none (the paper)", "robust")
        ]
        print(f"| `{kind}` | {' | '.join(f'{c.consensus:.1f} / {c.accuracy:.1f}' for c in cells)} |", flush=True)


if __name__ == "__main__":
    parts = {"epsilon": epsilon, "randomised": randomised, "attackers": attackers, "kinds": kinds}
    if len(sys.argv) != 3 or sys.argv[1] not in parts or sys.argv[2] not in SETTINGS:
        sys.exit(__doc__)
    parts[sys.argv[1]](sys.argv[2])
