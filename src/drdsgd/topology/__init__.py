"""Which devices are linked, and how they average: graphs, and mixing matrices over them."""

__all__: list[str] = []
