"""Omni IIE Bench: foreground and background apart, questions about the result, scales and turns."""
