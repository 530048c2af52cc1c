"""What the paper did, as Python: one file per table, figure or experiment."""
