"""What training costs in time and memory, beside TRL: notebook 11_overhead."""
