"""Many runs as text and pages."""
