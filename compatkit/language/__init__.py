"""Language models: tasks with choices and texts, models that choose and write, adapters."""
