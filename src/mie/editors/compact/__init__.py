"""The compact editor: a small network that paints, restores and transfers by instruction, on a laptop."""
