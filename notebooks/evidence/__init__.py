"""What the study says about the paper's claims, from the CSV files of its results alone."""
