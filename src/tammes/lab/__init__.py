"""The lab on top of the library: data, models, training, inference, recipes, reports and the command line."""
