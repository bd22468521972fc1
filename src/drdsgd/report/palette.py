"""Colours and dashes of lines, and the colour scale of graphs: the plots and the page share them."""

from __future__ import annotations

__all__ = ["COLOURS", "DASHES", "SCALE"]

# Okabe and Ito's colours, which readers with any colour vision can tell apart; without black and yellow, which vanish
# on a dark or a light page, and with a lighter blue
COLOURS = ("#1a7fc0", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
# 7 dashes and 6 colours have no common divisor: neighbouring lines also differ in grey, and the first pair to repeat is
# that of the 43rd line
DASHES = ("", "7 4", "2 3", "8 3 2 3", "14 4", "10 3 2 3 2 3", "4 2")
# cividis looks the same with and without a colour vision deficiency
SCALE = (
    "#00224e", "#123570", "#3b496c", "#575d6d", "#707173", "#8a8678", "#a59c74", "#c3b369", "#e1cc55", "#fee838",
)  # fmt: skip
