"""The paper, reproduced: every experiment of it, and what came of every claim."""
