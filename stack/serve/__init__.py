"""Launch, watch, judge and diagnose an SGLang server."""
