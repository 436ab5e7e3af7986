"""What makes the papers' tables: recipes, runs and records, tables, claims."""
