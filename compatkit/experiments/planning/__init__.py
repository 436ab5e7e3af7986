"""What the papers' tables ask for and what that would cost: the catalogue, shapes and sizes, the rehearsal without a GPU."""
