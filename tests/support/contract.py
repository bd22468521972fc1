"""The public interface: names, commands and their options."""

from __future__ import annotations

NAMES = [
    "Algorithm", "Diverged", "Experiment", "Info", "InputError", "Mixing", "Result", "State", "ad_gda", "afl",
    "algorithm", "algorithms", "choco_sgd", "compression", "d2", "data", "datasets", "ditto", "dr_dsgd",
    "dr_gt_adam", "dr_qgm", "drfa", "dsgd", "dsgdm", "erm", "exact_diffusion", "fed_term", "fedavg", "fedrobust",
    "gradient_tracking", "graphs", "gt_adam", "kl_dro", "make_round", "metrics", "metropolis", "mixing", "models",
    "objectives", "optimizers", "partition", "q_fedavg", "qg_dsgdm", "resume", "rfa", "run", "schedules", "servers",
    "sgp", "train", "trajectory",
]  # fmt: skip

OF_A_RUN = [
    "--objective", "--optimizer", "--rounds", "--batch-size", "--eta", "--eta-schedule", "--weight-decay",
    "--local-steps", "--mu", "--mu-schedule", "--weights", "--radius", "--tilt", "--q", "--dual-eta", "--dual-penalty",
    "--loss-clip", "--loss-smoothing", "--weight-cap", "--momentum", "--second-momentum",
    "--compression", "--gamma", "--clients", "--pull",
    "--shift-penalty", "--shift-eta", "--shift", "--devices", "--graph", "--p", "--mixing", "--gossip-steps",
    "--link-failures", "--dropouts", "--dataset", "--data-dir", "--model", "--partition", "--shards", "--alpha",
    "--heterogeneity", "--scaling", "--validation", "--random-labels", "--reference", "--eval-every",
    "--local-every", "--checkpoint-every", "--execution", "--matmul", "--precision", "--dtype", "--device", "--threads",
]  # fmt: skip
COMMANDS = {
    "train": [
        "file",
        "--out",
        "--resume",
        "--log",
        "--engine",
        "--backend",
        "--timeout",
        "--regroup",
        "--algorithm",
        "--seed",
        *OF_A_RUN,
    ],
    "compare": ["--algorithm", "--seeds", "--out", "--resume", "--log", *OF_A_RUN],
    "demo": ["--out", "--seeds"],
    "reproduce": ["what", "--seeds", "--rounds", "--out", "--records", "--quick", "--only-known", "--threads"],
    "graph": [
        "--out",
        "--devices",
        "--rounds",
        "--graph",
        "--p",
        "--seed",
        "--mixing",
        "--gossip-steps",
        "--local-steps",
        "--link-failures",
        "--dropouts",
    ],
    "algorithms": ["name"],
    "report": ["runs", "--out"],
    "node": ["file", "--threads", "--log"],
    "bench": ["cases", "--repeats", "--out", "--plot", "--resume"],
    "data": [],
    "data get": ["name", "--data-dir"],
    "network": [],
    "network init": [
        "--out",
        "--hosts",
        "--port",
        "--days",
        "--keys",
        "--own-data",
        "--classes",
        "--mean-samples",
        "--deadline",
        "--patience",
        "--staleness",
        "--metrics-port",
        "--algorithm",
        "--seed",
        *[
            option
            for option in OF_A_RUN
            if option not in ("--data-dir", "--device", "--local-every", "--matmul", "--threads")
        ],
    ],
    "network join": ["file"],
    "network sign": ["folder", "files", "--days"],
    "network run": ["folder"],
    "network status": ["path"],
}
