"""What a run leaves behind and how it is found again: folders, fingerprints, published runs, parameters, the papermill engine, pages."""
