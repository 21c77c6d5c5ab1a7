"""How images go wrong, simulated where it happens: in sinogram, k-space, envelope and on the skin."""
