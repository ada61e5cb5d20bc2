"""From a bundle to its reports."""
