"""Graph files: GraphML, a NumPy adjacency matrix, or an edge list -> a networkx graph on the nodes 0 .. K-1."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from xml.parsers import expat

import networkx as nx
import numpy as np

from drdsgd.errors import InputError, one_line

__all__ = ["read"]


def read(path: Path) -> nx.Graph:
    """The links of a graph file, unchecked; `graphs.from_file` describes the formats."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or one_line(error)}") from error
    parse = {".graphml": _parse_graphml, ".npy": _parse_npy}.get(path.suffix.lower(), _parse_edges)
    return _numbered(parse(content))


def _parse_graphml(content: bytes) -> nx.Graph:
    _refuse_doctype(content)
    try:
        with warnings.catch_warnings():
            # networkx warns about attributes and ports, which are not read here
            warnings.simplefilter("ignore")
            return nx.read_graphml(io.BytesIO(content))
    except Exception as error:  # networkx passes on whatever a malformed file raises
        raise InputError(f"not readable as GraphML ({one_line(error)}): check it with an XML tool") from error


def _refuse_doctype(content: bytes) -> None:
    """A DOCTYPE declares entities, and a few lines of them can expand to gigabytes ("billion laughs").

    Newer versions of expat limit that, older ones do not. GraphML needs no DOCTYPE.
    """

    def refuse(*_: object) -> None:
        raise InputError("GraphML with a DOCTYPE is refused, because it can expand without bound: delete that line")

    # expat decodes the file first, so no odd encoding can hide the word
    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(content, True)
    except InputError:
        raise
    except (expat.ExpatError, LookupError, ValueError) as error:  # the last two: an unknown encoding
        raise InputError(f"not readable as XML ({one_line(error)}): is it GraphML?") from error


def _parse_npy(content: bytes) -> nx.Graph:
    try:
        matrix = np.load(io.BytesIO(content), allow_pickle=False)
    except Exception as error:  # a damaged header raises ValueError, EOFError, TokenError, ...
        raise InputError(f"not readable as a NumPy array ({one_line(error)}): write it with numpy.save") from error
    if not isinstance(matrix, np.ndarray) or matrix.dtype.kind not in "biuf":
        raise InputError("must hold one array of numbers: write the adjacency matrix with numpy.save")
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise InputError(f"the adjacency matrix must be square, got shape {matrix.shape}: give K rows and K columns")
    bad = np.argwhere((matrix != 0) & (matrix != 1))
    if len(bad):
        i, j = bad[0].tolist()
        raise InputError(f"the adjacency matrix must hold 0 and 1 only, got {matrix[i, j]} at [{i}, {j}]")
    bad = np.argwhere(matrix != matrix.T)
    if len(bad):
        i, j = bad[0].tolist()
        raise InputError(f"the adjacency matrix must be symmetric, but [{i}, {j}] differs from [{j}, {i}]")
    return nx.from_numpy_array(matrix.astype(np.int64))


def _parse_edges(content: bytes) -> nx.Graph:
    try:
        lines = content.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f"not readable as an edge list ({one_line(error)}): save it as UTF-8") from error
    edges = (_edge(number, line) for number, line in enumerate(lines, start=1))
    return nx.Graph([edge for edge in edges if edge is not None])


def _edge(number: int, line: str) -> tuple[str, str] | None:
    # nx.write_edgelist writes attributes after a "{", and they may hold commas and blanks
    text = line.split("#", 1)[0].split("{", 1)[0].strip()
    if not text:
        return None
    words = [word.strip() for word in text.split(",")] if "," in text else text.split()
    # a line with more columns is rather an adjacency list or a table
    if len(words) not in (2, 3) or not words[0] or not words[1]:
        raise InputError(f"line {number} is not an edge: {line.strip()[:60]!r}; write two node names")
    return words[0], words[1]


def _numbered(graph: nx.Graph) -> nx.Graph:
    """The same links on 0 .. K-1, in a graph of the same class, so that `graphs.check` sees if it is directed."""
    try:
        names = sorted(graph, key=lambda name: (int(name), str(name)))
    except ValueError:
        names = sorted(graph, key=str)
    number = {name: i for i, name in enumerate(names)}
    numbered = graph.__class__()
    numbered.add_nodes_from((i, {"name": str(name)}) for i, name in enumerate(names))
    numbered.add_edges_from((number[u], number[v]) for u, v in graph.edges())
    return numbered
