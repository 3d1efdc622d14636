"""The process of one tokenizer: `python -P -m core.runtime.tokenizer FD`."""
