"""What devices hold: data sets, how they are dealt to devices, your own data, and mini-batches."""

from drdsgd.data.devices import (
    Devices,
    Samples,
    deal,
    from_folder,
    from_pairs,
    synthetic,
    with_random_labels,
)  # fmt: skip

__all__ = ["Devices", "Samples", "deal", "from_folder", "from_pairs", "synthetic", "with_random_labels"]
