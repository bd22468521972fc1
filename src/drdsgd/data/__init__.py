"""What devices hold: data sets, their partition over devices, your own data, and mini-batches."""

from drdsgd.data.devices import Devices, Samples, deal, synthetic, with_random_labels
from drdsgd.data.files import from_folder
from drdsgd.data.pairs import from_pairs

__all__ = ["Devices", "Samples", "deal", "from_folder", "from_pairs", "synthetic", "with_random_labels"]
