"""What our trained networks share: weights as files, and the files that ship."""
