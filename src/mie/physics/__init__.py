"""How images go wrong, simulated in the domain where it happens: sinogram, k-space, envelope, skin surface."""
