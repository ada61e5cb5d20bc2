"""Pictures of reports, as SVG."""
