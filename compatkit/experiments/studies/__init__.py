"""One class or module for each method notebook: which models a table needs, its rows, its dials, its notes."""
