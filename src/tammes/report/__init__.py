"""Tables, figures and pages from records; never training."""
