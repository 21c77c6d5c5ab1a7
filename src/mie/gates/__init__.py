"""Gates: a sample is kept, or refused with a reason and the numbers behind it."""
