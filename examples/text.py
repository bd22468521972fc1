"""Text: which package of Python's library is a docstring from? Devices hold different ones; the model embeds words."""

import ast
import re
import sysconfig
import zlib
from pathlib import Path

import networkx as nx
import torch
from torch import Tensor, nn

import drdsgd

PACKAGES = ["asyncio", "email", "http", "importlib", "logging", "multiprocessing", "unittest", "xml"]
WORDS, LENGTH = 8192, 40  # words are hashed to so many numbers; a text is cut or filled to so many words


def numbers(text: str) -> list[int]:
    words = re.findall(r"[a-z]+", text.lower())[:LENGTH]
    return [1 + zlib.crc32(word.encode()) % (WORDS - 1) for word in words] + [0] * (LENGTH - len(words))


def docstrings(package: str) -> list[list[int]]:
    found = []
    for path in sorted(Path(sysconfig.get_path("stdlib"), package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found += [numbers(text)] if len((text := ast.get_docstring(node) or "").split()) > 4 else []
    return found


class Words(nn.Module):
    """Every word has a score for each package, at first 0; a text's are their sum over the root of its length."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Embedding.from_pretrained(torch.zeros(WORDS, len(PACKAGES)), freeze=False)

    def forward(self, x: Tensor) -> Tensor:
        there = (x > 0).unsqueeze(2)  # 0 fills a text up
        scores: Tensor = (self.scores(x) * there).sum(dim=1) / there.sum(dim=1).clamp(min=1).sqrt()
        return scores


# a device has half of one package's docstrings and half of the next one's; whole numbers stay whole numbers
halves = [(texts[::2], texts[1::2]) for texts in map(docstrings, PACKAGES)]
devices = []
for i in range(len(PACKAGES)):
    j = (i + 1) % len(PACKAGES)
    x = torch.tensor(halves[i][0] + halves[j][1])
    devices.append((x, torch.tensor([i] * len(halves[i][0]) + [j] * len(halves[j][1]))))


def train(algorithm: drdsgd.Algorithm) -> drdsgd.Result:
    torch.manual_seed(0)
    return drdsgd.train(Words(), devices, nx.complete_graph(len(devices)), algorithm, rounds=500, reference="uniform")


plain = train(drdsgd.dsgd(eta=2.0))
robust = train(drdsgd.dr_dsgd(eta=2.0, mu=1.0, weights="normalized"))
print("device holds                 texts    DSGD  DR-DSGD")
for i, (a, b) in enumerate(zip(plain.final.consensus.per_device, robust.final.consensus.per_device, strict=True)):
    held = f"{PACKAGES[i]}, {PACKAGES[(i + 1) % len(PACKAGES)]}"
    print(f"{held:28s} {len(devices[i][1]):5d} {a:6.1f} % {b:6.1f} %")
for name, result in (("DSGD", plain), ("DR-DSGD", robust)):
    c = result.final.consensus
    print(f"{name}: average {c.average:.1f} %, worst {c.worst:.1f} %, of {len(c.per_device)} devices")
gain = robust.final.consensus.worst - plain.final.consensus.worst
print(f"DR-DSGD {'helps' if gain > 0 else 'does not help'} the worst-off device here: {gain:+.1f} points.")
