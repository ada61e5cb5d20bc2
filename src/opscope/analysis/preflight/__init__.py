"""What a program tells before it runs."""
