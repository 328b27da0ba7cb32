"""Ways for tensors to travel between ranks, behind one interface."""
