"""Features of labelled images: made live by the pipeline, read from a cache, or a person's own."""
