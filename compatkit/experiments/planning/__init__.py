"""What the papers' tables ask for and what that would cost: the catalogue, the counts of models, the rehearsal without a GPU."""
