"""Models, losses and batches of the conformance suite, and what theory predicts."""
