"""From a model or a configuration to a bundle."""
