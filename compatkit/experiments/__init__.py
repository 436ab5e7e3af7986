"""What makes the papers' tables: recipes, kept runs, studies of each method, tables, pictures, claims and their verdicts."""
