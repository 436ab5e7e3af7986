"""From kept predictions alone: what every row answered, which claims hold, the pages of results, and every number computed again."""
