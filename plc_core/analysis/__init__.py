"""What a run's files say: statistics (numbers), audit (tables), figures (pictures). No torch."""
