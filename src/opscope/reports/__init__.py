"""Results in, text out: terminal, Markdown, HTML, CSV. A report computes nothing; it shows what analyses found."""
