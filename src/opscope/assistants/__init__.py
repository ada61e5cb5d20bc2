"""What AI assistants call: the tools of ``opscope mcp``, and the server that offers them."""
