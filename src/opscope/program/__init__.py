"""The static side: what a program is made of and what its operators are."""
